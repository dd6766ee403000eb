"""Folders as today's transformers saves them: tokenizer.json, and no vocab.json."""

import copy
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Tokenizer

from stages.stage2_sampling import greedy
from stages.stage4_kv_cache import generate
from support.checkpoint import load
from support.tokenizer import END_OF_TEXT, TOKENIZER_FILES, decode, load_tokenizer
from tests.helpers import never

BITS = [
    "the", " a", " fox", "'s", "'LL", "  ", "\n", "\r\n\n", "\t", "\x00", "\x85", "\u2028",
    "\u3000", "é", "e\u0301", "日本", "²½", "Ⅷ", "\u0661", "👍🏽", "🇩🇪", "\ufeff",
    "\U0010ffff", "y is ?", "<|", END_OF_TEXT, "[PAD]", " [PAD] ", "[", "Once upon", "12345", "Ġ",
    "don't",
]  # fmt: skip


def random_texts(count: int) -> list[str]:
    rng = random.Random(0)
    texts = ["".join(rng.choices(BITS, k=rng.randrange(12))) for _ in range(count)]
    return [*texts, "", "a\ud83db".encode("utf-8", "replace").decode(), "a" * 5000]


TEXTS = random_texts(3000)


@pytest.fixture(scope="module")
def saved(bpe_files, tmp_path_factory) -> Path:
    """A model and a tokenizer with a pad token, saved by transformers; nobody may change it."""
    pair, folder = tmp_path_factory.mktemp("pair"), tmp_path_factory.mktemp("saved")
    for name, content in bpe_files.items():
        (pair / name).write_bytes(content)
    tokenizer = GPT2Tokenizer.from_pretrained(pair)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=448, n_positions=64, n_embd=32, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "wte" not in name:
                weight.mul_(8)
        model.transformer.wte.weight[401:] = 0  # padded to a multiple of 64, and never chosen
    model.save_pretrained(folder)
    return folder


Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def edited(saved, tmp_path) -> Callable[[Edit], Path]:
    """A folder with that tokenizer.json alone, edited."""

    def edit(change: Edit) -> Path:
        content = json.loads((saved / "tokenizer.json").read_text(encoding="utf-8"))
        change(content)
        (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        return tmp_path

    return edit


def test_transformers_writes_no_vocab_json(saved):
    names = {file.name for file in saved.iterdir()}
    assert "tokenizer.json" in names
    assert not names & set(TOKENIZER_FILES)


def test_ids_of_thousands_of_texts_are_those_of_transformers(saved):
    ours, theirs = load_tokenizer(saved), GPT2Tokenizer.from_pretrained(saved)
    for text, ids in zip(TEXTS, theirs(TEXTS)["input_ids"], strict=True):
        assert ours.encode(text, allowed_special="all") == ids
        assert decode(ours, ids) == theirs.decode(ids)
    plain = theirs(TEXTS, split_special_tokens=True)["input_ids"]
    for text, ids in zip(TEXTS, plain, strict=True):
        assert ours.encode_ordinary(text) == ids


def test_greedy_text_of_a_folder_from_transformers_is_that_of_transformers(saved):
    """The rows that pad the embedding are dropped, the pad token's row isn't."""
    model, tokenizer = load(saved)
    assert (model.config.vocab_size, tokenizer.n_vocab) == (401, 401)
    theirs = GPT2LMHeadModel.from_pretrained(saved)
    words = GPT2Tokenizer.from_pretrained(saved)
    for prompt in ("Once upon a time", "A", "日本 [PAD"):
        ids = torch.tensor([tokenizer.encode_ordinary(prompt)])
        tokens = [step.token for step in generate(model, ids, 40, greedy, never)]
        expected = theirs.generate(
            ids, max_new_tokens=40, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0, ids.shape[1] :]
        assert tokens == expected.tolist()
        assert decode(tokenizer, tokens) == words.decode(expected)
        assert len(set(tokens)) > 5


def merges_as_strings(file: dict[str, Any]) -> None:
    file["model"]["merges"] = [" ".join(pair) for pair in file["model"]["merges"]]


def as_older_versions_wrote_it(file: dict[str, Any]) -> None:
    """The parts that were added to the format later."""
    merges_as_strings(file)
    for name in ("type", "byte_fallback", "ignore_merges"):
        del file["model"][name]
    del file["pre_tokenizer"]["use_regex"]
    file["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}


def two_special_tokens(file: dict[str, Any]) -> None:
    file["added_tokens"].append(
        {"id": 401, "content": "<sep>", "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
    )  # fmt: skip


@pytest.mark.parametrize(
    "change", [merges_as_strings, as_older_versions_wrote_it, two_special_tokens]
)
def test_all_ways_to_write_a_gpt2_tokenizer_give_the_same_ids(edited, change):
    folder = edited(change)
    ours, theirs = load_tokenizer(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in TEXTS[:300]:
        assert ours.encode(text, allowed_special="all") == theirs.encode(text).ids


TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": END_OF_TEXT, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {END_OF_TEXT: {"id": END_OF_TEXT, "ids": [399], "tokens": [END_OF_TEXT]}},
}
SPLIT = {"type": "Split", "pattern": {"Regex": r"\s+"}, "behavior": "Isolated", "invert": False}
WORDPIECE = {
    "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0, "a": 1},
}  # fmt: skip
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def put(path: str, value: object) -> Edit:
    """An edit that sets a part, such as model.dropout or added_tokens.1.lstrip."""

    def change(file: Any) -> None:
        *above, last = [int(name) if name.isdigit() else name for name in path.split(".")]
        for name in above:
            file = file[name]
        file[last] = value

    return change


def another_split_of_a_token(file: dict[str, Any]) -> None:
    """A token of three characters is joined from its other two parts, which are never there."""
    merges, vocab = file["model"]["merges"], file["model"]["vocab"]
    at = next(i for i, (a, b) in enumerate(merges) if len(a) == 2 and a[1] + b in vocab)
    a, b = merges[at]
    merges[at] = [a[0], a[1] + b]


def swapped(file: dict[str, Any]) -> None:
    merges = file["model"]["merges"]
    merges[3], merges[90] = merges[90], merges[3]


def one_merge_fewer(file: dict[str, Any]) -> None:
    file["model"]["merges"].pop(40)


REFUSED = [
    ("normalizer", put("normalizer", {"type": "NFC"}), "normalizer is 'NFC'"),
    ("lowercase", put("normalizer", {"type": "Lowercase"}), "normalizer is 'Lowercase'"),
    ("split", put("pre_tokenizer", SPLIT), "pre_tokenizer.type is 'Split'"),
    ("sequence", put("pre_tokenizer", {"type": "Sequence", "pretokenizers": [SPLIT, BYTES]}),
     "pre_tokenizer.type is 'Sequence'"),
    ("whitespace", put("pre_tokenizer", {"type": "Whitespace"}), "pre_tokenizer.type is 'White"),
    ("nothing", put("pre_tokenizer", None), "pre_tokenizer.type is None"),
    ("prefix", put("pre_tokenizer.add_prefix_space", True), ".add_prefix_space is True"),
    ("no regex", put("pre_tokenizer.use_regex", False), "pre_tokenizer.use_regex is False"),
    ("template", put("post_processor", TEMPLATE), "post_processor adds tokens"),
    ("templates", put("post_processor", {"type": "Sequence", "processors": [BYTES, TEMPLATE]}),
     "post_processor adds tokens"),
    ("bert", put("post_processor", {"type": "BertProcessing", "sep": ["a", 1], "cls": ["b", 2]}),
     "post_processor adds tokens"),
    ("decoder", put("decoder", {"type": "WordPiece", "prefix": "##", "cleanup": True}),
     "decoder.type is 'WordPiece'"),
    ("wordpiece", put("model", WORDPIECE), "model.type is 'WordPiece'"),
    ("unigram", put("model", {"type": "Unigram", "unk_id": 0, "vocab": [["a", -1.0]]}),
     "model.type is 'Unigram'"),
    ("dropout", put("model.dropout", 0.1), "model.dropout is 0.1"),
    ("fallback", put("model.byte_fallback", True), "model.byte_fallback is True"),
    ("ignore merges", put("model.ignore_merges", True), "model.ignore_merges is True"),
    ("subword prefix", put("model.continuing_subword_prefix", "##"), "continuing_subword_prefix"),
    ("suffix", put("model.end_of_word_suffix", "</w>"), "model.end_of_word_suffix is '</w>'"),
    ("added, not special", put("added_tokens.1.special", False), r"'[PAD]': special is False"),
    ("lstrip", put("added_tokens.1.lstrip", True), r"'[PAD]': lstrip is True"),
    ("single word", put("added_tokens.0.single_word", True), "single_word is True"),
    ("two ids", put("added_tokens.0.id", 7), f"'{END_OF_TEXT}' has two ids, 399 and 7"),
    ("an id twice", put("added_tokens.1.id", 399), "the ids in tokenizer.json must be 0 to 400"),
    ("a gap", put("added_tokens.1.id", 500), "the ids in tokenizer.json must be 0 to 400"),
    ("a word as special", put("added_tokens.1.content", "Ġthe"), "'Ġthe' has two ids"),
    ("other split", another_split_of_a_token, "never reached"),
    ("swapped merges", swapped, "with the merges in the order of tokenizer.json"),
    ("one merge fewer", one_merge_fewer, "must be either made by a merge or a special token"),
    ("no merges", put("model.merges", None), "tokenizer.json is broken"),
    ("a merge of three", put("model.merges.0", ["a", "b", "c"]), "'a b c' is no pair of tokens"),
    ("a number", put("model.merges.0", 5), "tokenizer.json is broken"),
    ("ids are texts", put("model.vocab.A", "5"), "it must map tokens to whole numbers"),
    ("vocab is a list", put("model.vocab", [["a", 1]]), "tokenizer.json lacks the token"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "part"), [row[1:] for row in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_what_is_not_gpt2s_is_refused_by_part_and_file(edited, change, part):
    """Each of these gives some text other ids in transformers, or no ids at all."""
    folder = edited(change)
    with pytest.raises(ValueError, match=re.escape(part)) as error:
        load_tokenizer(folder)
    assert str(error.value).startswith(f"{folder}: tokenizer.json") or "tokenizer.json" in str(
        error.value
    )
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "5", "{}"], ids=repr)
def test_a_broken_tokenizer_json_is_refused(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_random_edits_are_refused_or_change_no_ids(saved, edited):
    """What nobody listed: each part in turn takes each value that another part has."""
    file = json.loads((saved / "tokenizer.json").read_text(encoding="utf-8"))
    values = [True, False, None, "", "Ġ", 0, 0.5, [], {}, BYTES, SPLIT, {"type": "NFKC"}]
    paths = [name for name in file if name not in ("added_tokens", "model")]
    paths += [f"pre_tokenizer.{name}" for name in file["pre_tokenizer"]]
    paths += [f"decoder.{name}" for name in file["decoder"]]
    paths += [f"model.{name}" for name in file["model"] if name not in ("vocab", "merges")]
    paths += [f"added_tokens.1.{name}" for name in file["added_tokens"][1]]
    texts, refused, accepted = TEXTS[:60], 0, 0
    for path in paths:
        for value in values:
            folder = edited(put(path, copy.deepcopy(value)))
            try:
                ours = load_tokenizer(folder)
            except ValueError:
                refused += 1
                continue
            try:
                theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
            except Exception:  # their reader refuses the file; ours found nothing that matters
                continue
            theirs.no_truncation()
            theirs.no_padding()
            for text in texts:
                assert ours.encode(text, allowed_special="all") == theirs.encode(text).ids, path
            accepted += 1
    assert refused > 150
    assert accepted > 30


USER = {"content": "<user>", "lstrip": False, "rstrip": False, "single_word": False}
CONFIGS = [
    ({"added_tokens_decoder": {"401": {**USER, "special": False}}}, "'<user>': special is False"),
    ({"added_tokens_decoder": {"9": {**USER, "content": END_OF_TEXT, "special": True}}}, "two ids"),
    ({"pad_token": "he"}, "pad_token 'he' is no special token"),
    ({"pad_token": "<nowhere>"}, "pad_token '<nowhere>' is no special token"),
    ({"mask_token": {"content": "he"}}, "mask_token 'he' is no special token"),
    ({"extra_special_tokens": {"a": "<a>"}}, "extra_special_tokens '<a>' is no special token"),
    ({"additional_special_tokens": ["<a>"]}, "additional_special_tokens '<a>' is no special"),
    ({"add_prefix_space": True}, "add_prefix_space is True"),
    ({"add_bos_token": True}, "add_bos_token is True"),
    ({"tokenizer_class": "RobertaTokenizer"}, "tokenizer_class is 'RobertaTokenizer'"),
]


@pytest.mark.parametrize(("entries", "part"), CONFIGS)
@pytest.mark.parametrize("form", ["tokenizer.json", "vocab.json and merges.txt"])
def test_a_tokenizer_config_that_changes_ids_is_refused(edited, bpe_files, form, entries, part):
    folder = edited(lambda file: None)
    if form != "tokenizer.json":
        (folder / "tokenizer.json").unlink()
        for name, content in bpe_files.items():
            (folder / name).write_bytes(content)
    assert load_tokenizer(folder).n_vocab in (400, 401)
    (folder / "tokenizer_config.json").write_text(json.dumps(entries), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"tokenizer_config\.json can't be used: .*{part}"):
        load_tokenizer(folder)


def test_special_tokens_that_a_tokenizer_config_adds_are_read_and_may_lie_behind_the_rows(
    edited, saved
):
    folder = edited(lambda file: None)
    added = {"added_tokens_decoder": {"401": {**USER, "special": True}}, "sep_token": "<user>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(added), encoding="utf-8")
    ours = load_tokenizer(folder)
    assert ours.encode("a<user>b", allowed_special="all")[1] == 401
    assert load_tokenizer(folder, rows=401).n_vocab == 401
    assert load_tokenizer(folder, rows=400).n_vocab == 400


@pytest.mark.parametrize("other", ["[PAD]x", "[", "PAD", "]end", "a["])
def test_special_tokens_that_overlap_are_refused(edited, other):
    """transformers takes the longest, tiktoken the first that it knows."""

    def change(file: dict[str, Any]) -> None:
        two_special_tokens(file)
        file["added_tokens"][-1]["content"] = other

    with pytest.raises(ValueError, match=r"overlaps with another|two ids|made by a merge"):
        load_tokenizer(edited(change))


def test_where_both_forms_are_there_they_must_agree(edited, bpe_files):
    """tokenizer.json may have special tokens behind the others, which vocab.json never had."""
    folder = edited(lambda file: None)
    for name, content in bpe_files.items():
        (folder / name).write_bytes(content)
    assert load_tokenizer(folder).n_vocab == 401
    vocab = json.loads(bpe_files["vocab.json"])
    vocab["A"], vocab["B"] = vocab["B"], vocab["A"]
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    with pytest.raises(ValueError, match=r"vocab\.json and tokenizer\.json disagree about '[AB]'"):
        load_tokenizer(folder)
    (folder / "vocab.json").write_bytes(bpe_files["vocab.json"])
    lines = bpe_files["merges.txt"].decode("utf-8").splitlines(keepends=True)
    (folder / "merges.txt").write_text("".join(lines[:-1]), encoding="utf-8")
    with pytest.raises(ValueError, match=r"merges\.txt and tokenizer\.json disagree"):
        load_tokenizer(folder)
