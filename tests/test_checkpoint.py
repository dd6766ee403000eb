"""The model's folder: what is saved, what is opened, what is refused, and what a crash leaves."""

import errno
import itertools
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from support.checkpoint import end_of_text_ids, load, save
from support.corpus import stories
from support.tokenizer import decode, train_bpe

ROOT = Path(__file__).resolve().parent.parent
IDS = torch.tensor([[5, 399, 17, 0, 255, 300, 42, 42], [1, 2, 3, 4, 5, 6, 7, 8]])
TEXTS = [
    "Once upon a time, Ida's  cat\n\nsaid:\t“é 日本”\r\n  ",
    "🙂👩‍👩‍👧 e\u0301 \x00\x7f\u2028 don't  DON'T 12345",
    *stories(5, seed=99),
]


def logits_of(model):
    with torch.inference_mode():
        return model(IDS)


def same(model, other):
    """Whether two models have equal configurations and exactly equal weights."""
    ours, theirs = model.state_dict(), other.state_dict()
    return (
        model.config == other.config
        and ours.keys() == theirs.keys()
        and all(torch.equal(ours[name], theirs[name]) for name in ours)
    )


def names_in(folder):
    return sorted(file.name for file in folder.iterdir())


@pytest.fixture
def reworked(small_folder, tmp_path):
    """Copy small_folder with other tensors in model.safetensors."""

    def rework(change):
        folder = tmp_path / "reworked"
        shutil.copytree(small_folder, folder, dirs_exist_ok=True)
        weights = change(load_file(folder / "model.safetensors"))
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    return rework


@pytest.fixture
def refused():
    """The one sentence with which a folder is refused; it names the folder."""

    def refuse(folder):
        with pytest.raises(ValueError, match=r"\S") as error:
            load(folder)
        assert str(folder) in str(error.value)
        assert "\n" not in str(error.value)
        return str(error.value)

    return refuse


# What is saved is what is loaded


def test_a_saved_model_is_loaded_with_the_same_weights_config_and_tokenizer(
    tmp_path, make_model, bpe_files
):
    model = make_model(n_layer=3, n_head=4, block_size=48)
    model.config = replace(model.config, dropout=0.25)
    save(tmp_path / "new" / "folder", model, bpe_files)
    loaded, tokenizer = load(str(tmp_path / "new" / "folder"))
    assert same(loaded, model)
    assert tokenizer.n_vocab == 400
    assert tokenizer.encode("Once upon", allowed_special="all")
    assert end_of_text_ids(tmp_path / "new" / "folder") == [tokenizer.eot_token] == [399]
    assert names_in(tmp_path / "new" / "folder") == [
        "config.json",
        "generation_config.json",
        "merges.txt",
        "model.safetensors",
        "tokenizer_config.json",
        "vocab.json",
    ]


def test_the_loaded_model_is_in_eval_mode_and_can_be_trained(small_folder):
    model, _ = load(small_folder)
    assert not any(module.training for module in model.modules())
    model(IDS).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_loading_draws_no_random_numbers(small_folder):
    """Weights were first filled at random: loading took longer, and moved the caller's seed."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    load(small_folder)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_model_is_loaded_in_the_dtype_asked_for_whatever_is_stored(
    small_folder, tmp_path, dtype, bpe_files
):
    model, _ = load(small_folder, dtype=dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    save(tmp_path, model, bpe_files)
    back, _ = load(tmp_path)
    assert {parameter.dtype for parameter in back.parameters()} == {torch.float32}
    assert torch.equal(back.wte.weight, model.wte.weight.float())


def test_other_files_in_the_folder_stay(tmp_path, make_model, bpe_files):
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    (tmp_path / "sub").mkdir()
    for seed in (1, 2):
        save(tmp_path, make_model(seed), {**bpe_files, "extra.bin": b"extra"})
    assert (tmp_path / "notes.txt").read_text(encoding="utf-8") == "mine"
    assert (tmp_path / "sub").is_dir()
    assert (tmp_path / "extra.bin").read_bytes() == b"extra"
    assert same(load(tmp_path)[0], make_model(2))


# Hugging Face


def hugging_face_model(**changes):
    torch.manual_seed(0)
    shape: dict[str, Any] = {"vocab_size": 400, "n_positions": 64, "n_layer": 2, "n_head": 2}
    ends: dict[str, Any] = {"n_embd": 32, "bos_token_id": 399, "eos_token_id": 399}
    return GPT2LMHeadModel(GPT2Config(**shape, **ends, initializer_range=0.3, **changes)).eval()


def test_names_and_shapes_of_the_weights_are_those_of_transformers(small_folder, make_model):
    theirs = dict(hugging_face_model().named_parameters())
    ours = dict(make_model().named_parameters())
    assert {f"transformer.{name}": weight.shape for name, weight in ours.items()} == {
        name: weight.shape for name, weight in theirs.items()
    }
    assert load_file(small_folder / "model.safetensors").keys() == theirs.keys()


def test_a_folder_that_transformers_wrote_opens_with_equal_logits(tmp_path, bpe_files):
    theirs = hugging_face_model()
    theirs.save_pretrained(tmp_path)
    for name, content in bpe_files.items():
        (tmp_path / name).write_bytes(content)
    ours, _ = load(tmp_path)
    assert ours.config.dropout == 0.1
    torch.testing.assert_close(logits_of(ours), logits_of(theirs).logits, rtol=0, atol=1e-4)
    assert logits_of(ours).std() > 1  # far from uniform
    assert end_of_text_ids(tmp_path) == [399]


def test_a_folder_of_ours_opens_in_transformers_with_equal_logits_ids_and_ends(small_folder):
    ours, tokenizer = load(small_folder)
    theirs = GPT2LMHeadModel.from_pretrained(small_folder)
    torch.testing.assert_close(logits_of(theirs).logits, logits_of(ours), rtol=0, atol=1e-4)
    config, ends = theirs.config, theirs.generation_config
    assert config.bos_token_id == config.eos_token_id == config.pad_token_id == 399
    assert ends.bos_token_id == ends.eos_token_id == ends.pad_token_id == 399

    their_tokenizer = AutoTokenizer.from_pretrained(small_folder)
    for text in TEXTS:
        ids = tokenizer.encode_ordinary(text)
        assert their_tokenizer(text)["input_ids"] == ids
        assert their_tokenizer.decode(ids) == text == decode(tokenizer, ids)
    assert their_tokenizer.model_max_length == 64
    assert their_tokenizer.eos_token_id == 399
    assert their_tokenizer("a<|endoftext|>")["input_ids"] == [64, 399]


def test_transformers_writes_the_text_that_we_write(small_folder):
    ours, tokenizer = load(small_folder, dtype=torch.float64)
    theirs = GPT2LMHeadModel.from_pretrained(small_folder, dtype=torch.float64)
    prompt = torch.tensor([tokenizer.encode("Once upon a time")])
    new = theirs.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=50, do_sample=False
    )
    ids = prompt
    with torch.inference_mode():
        for _ in range(new.shape[1] - prompt.shape[1]):
            ids = torch.cat((ids, ours(ids)[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(new, ids)


# Variants of the file


@pytest.mark.parametrize("masks", [False, True], ids=["no masks", "old masks"])
@pytest.mark.parametrize("prefix", ["", "transformer.", "_orig_mod.", "_orig_mod.transformer."])
def test_prefixes_and_old_mask_buffers_are_understood(reworked, small_folder, prefix, masks):
    """B104 and B105: torch.compile prefixes names, and GPT-2's own files hold the causal mask as
    `attn.bias`, which some took for a bias.
    """

    def change(weights):
        weights = {prefix + name.removeprefix("transformer."): w for name, w in weights.items()}
        if masks:
            for layer in range(2):
                attention = f"{prefix}h.{layer}.attn"
                weights[f"{attention}.bias"] = torch.ones(1, 1, 64, 64).tril()
                weights[f"{attention}.masked_bias"] = torch.tensor(-1e4)
        return weights

    assert same(load(reworked(change))[0], load(small_folder)[0])


def test_a_stored_head_is_dropped_if_it_is_the_embedding_and_refused_if_not(
    reworked, small_folder, refused
):
    def tied(weights):
        return weights | {"lm_head.weight": weights["transformer.wte.weight"].clone()}

    def untied(weights):
        return weights | {"lm_head.weight": weights["transformer.wte.weight"] + 1}

    assert same(load(reworked(tied))[0], load(small_folder)[0])
    assert "lm_head.weight differs from wte.weight" in refused(reworked(untied))


def test_missing_weights_are_named_at_most_five(reworked, refused):
    def without(*parts):
        return reworked(
            lambda weights: {k: w for k, w in weights.items() if not any(p in k for p in parts)}
        )

    assert "lacks ln_f.bias" in refused(without("ln_f.bias"))
    line = refused(without("h.1."))
    assert "and 7 more" in line  # a block has 12
    assert line.count("h.1.") == 5


def test_unknown_weights_are_named_at_most_five(reworked, refused):
    def more(count):
        new = {f"adapter.{i}": torch.zeros(1) for i in range(count)}
        return reworked(lambda weights: weights | new)

    assert refused(more(1)).endswith("has unknown adapter.0")
    line = refused(more(8))
    assert line.count("adapter.") == 5
    assert "and 3 more" in line


def test_weights_of_another_configuration_are_refused_with_both_shapes(edited, refused):
    """B111: weights of one run with the config of another ended in a KeyError while decoding."""
    line = refused(edited({"config.json": {"n_positions": 32}}))
    assert "wpe.weight" in line
    assert "(64, 32)" in line
    assert "(32, 32)" in line


# Broken and incomplete folders


def test_a_path_that_is_not_a_folder_is_refused(small_folder, refused, tmp_path):
    assert "is not a folder" in refused(tmp_path / "none")
    assert "is not a folder" in refused(small_folder / "config.json")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocab.json", "merges.txt"])
def test_a_folder_that_lacks_a_file_is_refused_by_the_files_name(edited, refused, name):
    folder = edited({})
    (folder / name).unlink()
    assert name in refused(folder)


def test_an_empty_folder_is_refused(tmp_path, refused):
    assert "config.json" in refused(tmp_path)


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return (open, (str(self.file), "w"))


def test_a_pickle_is_never_opened(edited, refused, tmp_path):
    """B109: pytorch_model.bin is a pickle, and loading one runs whatever code is in it."""
    folder, made = edited({}), tmp_path / "made"
    bomb = pickle.dumps(Bomb(made))
    (folder / "pytorch_model.bin").write_bytes(bomb)
    load(folder)
    (folder / "model.safetensors").unlink()
    assert "pytorch_model.bin, a pickle" in refused(folder)
    (folder / "model.safetensors").write_bytes(bomb)
    assert "no safetensors file" in refused(folder)
    assert not made.exists()
    pickle.loads(bomb).close()
    assert made.exists()  # the bomb is a real one


@pytest.mark.parametrize("kept", [0, 7, 500, -1])
def test_a_file_that_was_cut_short_is_refused(edited, refused, kept):
    # B110: half a download, or a disk that was full.
    folder = edited({})
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    assert "model.safetensors" in refused(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '"gpt2"', "\xff"], ids=repr)
@pytest.mark.parametrize("name", ["config.json", "vocab.json"])
def test_json_that_is_broken_or_no_object_is_refused(edited, refused, name, content):
    folder = edited({})
    (folder / name).write_bytes(content.encode("latin-1"))
    assert name in refused(folder)


@pytest.mark.parametrize("content", ["", "{", "[]"], ids=repr)
def test_a_broken_generation_config_is_refused(edited, content):
    folder = edited({})
    (folder / "generation_config.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"generation_config\.json"):
        end_of_text_ids(folder)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model_type", "llama"),
        ("activation_function", "relu"),
        ("layer_norm_epsilon", 1e-6),
        ("scale_attn_weights", False),
        ("scale_attn_by_inverse_layer_idx", True),
        ("reorder_and_upcast_attn", True),
        ("add_cross_attention", True),
        ("tie_word_embeddings", False),
        ("n_inner", 64),
    ],
)
def test_a_model_that_computes_something_else_is_refused_by_name_and_value(
    edited, refused, name, value
):
    line = refused(edited({"config.json": {name: value}}))
    assert name in line
    assert str(value) in line


@pytest.mark.parametrize("value", ["2", None, 2.5, 0, -1, [2]], ids=repr)
def test_a_config_whose_numbers_are_no_whole_numbers_is_refused_by_name(
    small_folder, tmp_path, refused, value
):
    folder = shutil.copytree(small_folder, tmp_path / "folder")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"n_layer": value}), encoding="utf-8")
    assert "n_layer" in refused(folder)


def test_missing_numbers_in_the_config_are_named(edited, refused):
    line = refused(edited({"config.json": {"n_layer": None, "n_positions": None}}))
    assert "n_layer" in line
    assert "n_positions" in line


def test_a_config_without_the_optional_entries_is_that_of_a_gpt2(edited, small_folder):
    optional = ("activation_function", "layer_norm_epsilon", "scale_attn_weights", "architectures")
    folder = edited({"config.json": dict.fromkeys(optional)})
    assert same(load(folder)[0], load(small_folder)[0])


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(
    tmp_path, make_model, bpe_files, refused
):
    save(tmp_path, make_model(vocab_size=399), bpe_files)
    line = refused(tmp_path)
    assert "400" in line
    assert "399" in line


def test_end_of_text_ids_come_from_either_config_as_a_number_or_a_list(edited):
    generation, config = "generation_config.json", "config.json"
    folder = edited({generation: {"eos_token_id": [7, 9]}, config: {"eos_token_id": 5}})
    assert end_of_text_ids(folder) == [7, 9]
    (folder / generation).unlink()
    assert end_of_text_ids(folder) == [5]
    (folder / config).write_text("{}", encoding="utf-8")
    assert end_of_text_ids(folder) == []


# A crash while saving


@pytest.fixture(scope="module")
def two(make_model, bpe_files):
    """Two states of a folder that differ in everything: layers, vocabulary, tokenizer."""
    other = train_bpe(stories(100, seed=7), vocab_size=300)
    return (
        (make_model(1, n_embd=16), {**bpe_files, "state.json": b'"first"'}),
        (make_model(2, n_embd=16, n_layer=3, vocab_size=300), {**other, "state.json": b'"second"'}),
    )


def which(folder, two):
    """0 or 1: which of the two states the folder holds, in all its parts."""
    model, tokenizer = load(folder)
    [index] = [i for i, (candidate, _) in enumerate(two) if same(model, candidate)]
    assert tokenizer.n_vocab == model.config.vocab_size
    assert end_of_text_ids(folder) == [tokenizer.eot_token]
    return index


class Crash(BaseException):
    """What the process notices of its own death: nothing that it does after it has an effect."""


def crash_at(monkeypatch, moment):
    """Let the file operation number `moment`, and all after it, not happen, and half of a write."""
    operations = itertools.count()

    def dying(real):
        def operation(*arguments, **options):
            number = next(operations)
            if number < moment:
                return real(*arguments, **options)
            if number == moment and real in writes:
                path, content = arguments
                writes[real](path, content[: len(content) // 2], **options)
            raise Crash

        return operation

    writes = {Path.write_bytes: Path.write_bytes, Path.write_text: Path.write_text}
    for name in ("write_bytes", "write_text", "mkdir", "rename", "replace", "rmdir", "unlink"):
        monkeypatch.setattr(Path, name, dying(getattr(Path, name)))
    monkeypatch.setattr(shutil, "rmtree", dying(shutil.rmtree))
    monkeypatch.setattr(os, "fsync", dying(os.fsync))


def saved_up_to(moment, folder, state):
    """Save, with a crash at that operation; returns whether it came so far."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        crash_at(monkeypatch, moment)
        try:
            save(folder, *state)
        except Crash:
            return True
    return False


def test_a_crash_at_any_operation_leaves_the_old_state_or_the_new_one_whole(tmp_path, two):
    """Files that are replaced one by one leave, half way, new weights beside an old config."""
    found = []
    for moment in itertools.count():
        folder = tmp_path / str(moment)
        save(folder, *two[0])
        (folder / "notes.txt").write_text("mine", encoding="utf-8")
        crashed = saved_up_to(moment, folder, two[1])
        found.append(which(folder, two))
        assert (folder / "notes.txt").read_text(encoding="utf-8") == "mine"
        if not crashed:
            break
        # And the next save finishes, or cleans up, what was begun.
        save(folder, *two[0])
        assert which(folder, two) == 0
        assert all(not name.startswith(".") for name in names_in(folder))
    assert len(found) > 20
    assert found == sorted(found)  # one moment decides: old before it, new after it
    assert found[0] == 0
    assert found[-2:] == [1, 1]


def test_a_crash_while_the_work_of_a_crashed_save_is_finished_loses_nothing(tmp_path, two):
    template = tmp_path / "template"
    save(template, *two[0])
    [decided] = [
        moment
        for moment in range(60)
        if saved_up_to(moment, shutil.copytree(template, tmp_path / f"t{moment}"), two[1])
        and which(tmp_path / f"t{moment}", two) == 1
        and which(tmp_path / f"t{moment - 1}", two) == 0
    ]
    half_moved = tmp_path / f"t{decided + 3}"  # three files are in place, others not yet
    assert (half_moved / ".complete").is_dir()
    found = set()
    for moment in itertools.count():
        folder = shutil.copytree(half_moved, tmp_path / f"again{moment}")
        crashed = saved_up_to(moment, folder, two[0])
        found.add(which(folder, two))
        if not crashed:
            break
    assert found == {0, 1}


def test_a_full_disk_leaves_the_old_state_and_nothing_else(tmp_path, two, monkeypatch):
    save(tmp_path, *two[0])
    before = {name: (tmp_path / name).read_bytes() for name in names_in(tmp_path)}
    real = Path.write_bytes

    def write_bytes(path, content):
        if path.name == "model.safetensors":
            real(path, content[:100])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, content)

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, *two[1])
    assert {name: (tmp_path / name).read_bytes() for name in names_in(tmp_path)} == before


SAVER = """
import os, pickle, sys
from pathlib import Path
from typing import Any
import torch
torch.set_num_threads(1)
from support.checkpoint import load, save

folder = Path(sys.argv[1])
states = []
for name in ("first", "second"):
    files = {file.name: file.read_bytes() for file in Path(sys.argv[2], name).iterdir()}
    kept = {k: v for k, v in files.items() if k in ("vocab.json", "merges.txt", "state.json")}
    states.append((load(Path(sys.argv[2], name))[0], kept))
print("ready", flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        while True:
            for state in states:
                save(folder, *state)
    print(child, flush=True)
    _, status = os.waitpid(child, 0)
    print(os.WTERMSIG(status), flush=True)
"""


def test_a_process_killed_while_it_saves_leaves_one_whole_state(tmp_path, two):
    """The same with a real kill: no exception handler and no clean-up runs."""
    for name, state in zip(("first", "second"), two, strict=True):
        save(tmp_path / "states" / name, *state)
    folder = tmp_path / "folder"
    save(folder, *two[0])
    command = [sys.executable, "-c", SAVER, folder, tmp_path / "states"]
    moments = random.Random(0)
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as saver:
        assert saver.stdout.readline() == "ready\n"
        for _ in range(12):
            saver.stdin.write("start\n")
            child = int(saver.stdout.readline())
            time.sleep(moments.uniform(0.02, 0.2))
            os.kill(child, signal.SIGKILL)
            assert int(saver.stdout.readline()) == signal.SIGKILL  # it didn't end by itself
            which(folder, two)
    save(folder, *two[1])
    assert which(folder, two) == 1
    assert all(not name.startswith(".") for name in names_in(folder))
