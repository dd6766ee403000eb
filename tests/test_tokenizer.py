"""Text to ids and back: as Hugging Face does it, for any text, and what a broken file says."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from support.corpus import stories
from support.tokenizer import (
    END_OF_TEXT,
    build_tokenizer,
    decode,
    load_tokenizer,
    token_bytes,
    train_bpe,
)

ROOT = Path(__file__).resolve().parent.parent

# Characters on which tokenizers differ: words, blanks of all kinds, and what is written in several
# code points. Lone surrogates are no text; a test of their own has them.
PIECES = st.one_of(
    st.sampled_from(
        ["'s", "'LL", " the", "  ", "\r\n", "\n\n", "\t", "\x00", "\x1c", "\x85", "\xa0", "\u2028"]
    ),
    st.sampled_from(
        ["\u3000", "e\u0301", "日本", "한국", "²", "½", "Ⅷ", "\u0661", "ß", END_OF_TEXT]
    ),
    st.sampled_from(["👍🏽", "👩\u200d👩\u200d👧", "🇩🇪", "\ufeff", "\u00ad", "\U0010ffff"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.text("ab '\n", max_size=12),
)
TEXTS = st.lists(PIECES, max_size=12).map("".join)


@pytest.fixture(scope="module")
def tokenizer(bpe_files):
    return build_tokenizer(bpe_files)


@pytest.fixture(scope="module")
def mixed_files():
    """A vocabulary with merges of Python's help topics and of non-ASCII text."""
    from pydoc_data.topics import topics

    exotic = "Ünïcödé “quotes” 日本語 日本語 한국어 👍🏽👍🏽 e\u0301e\u0301 \r\n\r\n    \t\t x²½"
    return train_bpe([*topics.values(), *[exotic] * 200], vocab_size=2000)


def hugging_face(files, folder):
    """The same two files, read by the `tokenizers` library."""
    for name, content in files.items():
        (folder / name).write_bytes(content)
    model = models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    theirs = Tokenizer(model)
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.decoder = decoders.ByteLevel()
    return theirs


@pytest.fixture(scope="module", params=["bpe_files", "mixed_files"])
def pair(request, tmp_path_factory):
    """Our tokenizer and Hugging Face's, from the same files."""
    files = request.getfixturevalue(request.param)
    return build_tokenizer(files), hugging_face(files, tmp_path_factory.mktemp("theirs"))


# Text to ids and back


def test_ids_of_stories_are_those_of_hugging_face(pair):
    ours, theirs = pair
    for story in stories(200, seed=5):
        assert ours.encode_ordinary(story) == theirs.encode(story).ids


@settings(max_examples=400)
@given(text=TEXTS)
@example(text="y is ?")
@example(text=" I  go to")
@example(text="a\r\nb   \r\n\r\n  c \n ")
@example(text="\x00")
@example(text="")
@example(text="don't DON'T we'll 's 12345 x²")
@example(text="Nora'sa'llb \u00a0\u00a0x\u2009y")
def test_ids_of_any_text_are_those_of_hugging_face_and_spell_it_again(pair, text):
    """B46: a clean-up after decoding turned "y is ?" into "y is?"."""
    ours, theirs = pair
    ids = ours.encode_ordinary(text)
    assert ids == theirs.encode(text).ids
    assert decode(ours, ids) == text
    assert b"".join(token_bytes(ours, token) for token in ids) == text.encode("utf-8")


def test_a_text_of_10_kilobytes_comes_back(tokenizer):
    text = "".join(map(chr, range(0x20, 0x3000))) + "".join(map(chr, range(0x1F300, 0x1F700)))
    assert decode(tokenizer, tokenizer.encode_ordinary(text)) == text


@given(text=TEXTS)
def test_end_of_text_has_the_last_id_and_no_plain_text_becomes_it(tokenizer, text):
    """B39: a user's text could end the model's."""
    assert tokenizer.eot_token == tokenizer.n_vocab - 1 == 399
    plain = tokenizer.encode(text + END_OF_TEXT, allowed_special=set(), disallowed_special=())
    assert plain == tokenizer.encode_ordinary(text + END_OF_TEXT)
    assert 399 not in plain
    assert tokenizer.encode(f"a{END_OF_TEXT}b", allowed_special="all") == [64, 399, 65]


def test_lone_surrogates_become_the_replacement_character_and_pairs_their_character(tokenizer):
    # B44, and the maintainers' answer in tiktoken's issue 82.
    replacement = tokenizer.encode_ordinary("\ufffd")
    assert tokenizer.encode_ordinary("\ud83d") == replacement
    assert tokenizer.encode_ordinary("a\udcffb") == tokenizer.encode_ordinary("a\ufffdb")
    assert tokenizer.encode_ordinary("\ud83d\udc4d") == tokenizer.encode_ordinary("👍")


@pytest.mark.parametrize("character", ["a", "^", " "])
def test_one_character_very_many_times_is_tokenised(tokenizer, character):
    """B43: older versions of tiktoken overflowed the stack, or took minutes."""
    text = character * (1_000_000 if character == "^" else 100_000)
    ids = tokenizer.encode_ordinary(text)
    assert decode(tokenizer, ids) == text


@pytest.mark.parametrize("token", [-1, 400, 50303, 2**31, 2**63, -9223372036854775808])
def test_an_impossible_id_is_refused_with_the_range(tokenizer, token):
    """B38 and B41: sampling on a broken device gave such ids; a KeyError says nothing."""
    for decoding in (lambda: decode(tokenizer, [5, token]), lambda: token_bytes(tokenizer, token)):
        with pytest.raises(ValueError, match=f"id {token} is not a token.* 0 to 399$"):
            decoding()


def test_a_character_cut_in_two_is_shown_as_the_replacement_character(tokenizer):
    # B54.
    first, *_ = tokenizer.encode_ordinary("😀")
    assert decode(tokenizer, [64, first]) == "a\ufffd"


# Training


def test_training_makes_256_bytes_then_merges_then_end_of_text(bpe_files):
    vocab = json.loads(bpe_files["vocab.json"])
    merges = bpe_files["merges.txt"].decode("utf-8").splitlines()[1:]
    assert sorted(vocab.values()) == list(range(400))
    assert len(merges) == 400 - 257
    assert [vocab[pair.replace(" ", "")] for pair in merges] == list(range(256, 399))
    assert vocab[END_OF_TEXT] == 399
    assert sorted(token_bytes(build_tokenizer(bpe_files), i) for i in range(256)) == [
        bytes([byte]) for byte in range(256)
    ]


def test_training_on_little_text_makes_fewer_tokens_than_asked_for():
    """The end-of-text id was the number asked for, and the ids then had a gap."""
    tokenizer = build_tokenizer(train_bpe(["aaaa"], vocab_size=1000))
    assert 257 < tokenizer.n_vocab < 270
    assert tokenizer.eot_token == tokenizer.n_vocab - 1


def test_the_smallest_vocabulary_is_the_bytes_and_end_of_text():
    assert build_tokenizer(train_bpe(["some text"], vocab_size=257)).n_vocab == 257
    with pytest.raises(ValueError, match=r"vocab_size is 256: .* need 257"):
        train_bpe(["some text"], vocab_size=256)


def test_training_on_text_without_the_end_of_text_marker_or_with_it_is_the_same_kind(tokenizer):
    # The marker in a corpus is plain text to the trainer; it must not take the special's id.
    trained = build_tokenizer(train_bpe([f"{END_OF_TEXT} {END_OF_TEXT}"] * 50, vocab_size=300))
    assert trained.eot_token == trained.n_vocab - 1
    assert trained.eot_token not in trained.encode_ordinary(END_OF_TEXT)
    assert decode(trained, trained.encode_ordinary(END_OF_TEXT)) == END_OF_TEXT


# Files


def test_a_folder_trained_anew_is_read_anew(tmp_path, bpe_files, mixed_files):
    """tiktoken's own reader caches local files by their path, and served the old vocabulary."""
    for files, size in ((bpe_files, 400), (mixed_files, 2000), (bpe_files, 400)):
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
        assert load_tokenizer(tmp_path).n_vocab == size


def test_a_missing_file_is_named(tmp_path, bpe_files):
    with pytest.raises(ValueError, match=r"has no vocab\.json and no merges\.txt"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_bytes(bpe_files["vocab.json"])
    with pytest.raises(ValueError, match=r"has no merges\.txt"):
        load_tokenizer(tmp_path)


def broken(what, files):
    vocab = json.loads(files["vocab.json"])
    merges = files["merges.txt"].decode("utf-8").splitlines()
    if what == "a byte is missing":
        del vocab["A"]
    elif what == "a byte is missing, the ids have no gap":
        last = vocab.pop(END_OF_TEXT)
        vocab[END_OF_TEXT] = vocab.pop("A")
        assert last == len(vocab)
    elif what == "a merge is missing in the vocabulary":
        del vocab[merges[-1].replace(" ", "")]
    elif what == "merges out of order":
        merges[1:] = merges[:0:-1]
    elif what == "two merges exchanged":
        merges[5], merges[60] = merges[60], merges[5]
    elif what == "a gap in the ids":
        vocab[END_OF_TEXT] += 1
    elif what == "an id twice":
        vocab[END_OF_TEXT] -= 1
    elif what == "negative ids":
        vocab = {token: i - 1 for token, i in vocab.items()}
    elif what == "ids are texts":
        vocab = {token: str(i) for token, i in vocab.items()}
    elif what == "an id is null":
        vocab[END_OF_TEXT] = None
    elif what == "ids are fractions":
        vocab = {token: float(i) for token, i in vocab.items()}
    elif what == "a list":
        vocab = list(vocab)
    elif what == "merges of unknown characters":
        merges.append("日 本")
    content = {"vocab.json": json.dumps(vocab).encode(), "merges.txt": "\n".join(merges).encode()}
    if what == "broken JSON":
        content["vocab.json"] = content["vocab.json"][:-9]
    elif what == "merges that are not UTF-8":
        content["merges.txt"] += b"\n\xff \xff"
    return content


@pytest.mark.parametrize(
    "what",
    [
        "a byte is missing",
        "a byte is missing, the ids have no gap",
        "a merge is missing in the vocabulary",
        "merges out of order",
        "two merges exchanged",
        "a gap in the ids",
        "an id twice",
        "negative ids",
        "ids are texts",
        "an id is null",
        "ids are fractions",
        "a list",
        "merges of unknown characters",
        "broken JSON",
        "merges that are not UTF-8",
    ],
)
def test_files_that_make_no_tokenizer_are_refused_in_one_sentence(tmp_path, bpe_files, what):
    """A missing byte lets tiktoken panic, with an exception that `except Exception` misses; other
    faults gave wrong ids in silence.
    """
    for name, content in broken(what, bpe_files).items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"vocab\.json") as error:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


def test_the_unbroken_files_are_accepted(tmp_path, bpe_files):
    for name, content in broken("nothing", bpe_files).items():
        (tmp_path / name).write_bytes(content)
    assert load_tokenizer(tmp_path).n_vocab == 400


def test_crlf_in_the_merges_changes_nothing(bpe_files, tokenizer):
    # Git on Windows writes it.
    files = {**bpe_files, "merges.txt": bpe_files["merges.txt"].replace(b"\n", b"\r\n")}
    for story in stories(20, seed=5):
        assert build_tokenizer(files).encode_ordinary(story) == tokenizer.encode_ordinary(story)


def opens_text_without_encoding(call):
    """Whether a call opens a text file in the platform's own encoding."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if any(keyword.arg == "encoding" for keyword in call.keywords):
        return False
    if name in ("read_text", "write_text"):
        return len(call.args) < (1 if name == "read_text" else 2)
    if name != "open" or getattr(getattr(call.func, "value", None), "id", "") in ("os", "Image"):
        return False
    mode_at = 1 if isinstance(call.func, ast.Name) else 0  # open(file, mode), path.open(mode)
    modes = [k.value for k in call.keywords if k.arg == "mode"] + call.args[mode_at : mode_at + 1]
    return not any("b" in getattr(mode, "value", "") for mode in modes)


def test_every_text_file_is_opened_with_an_encoding():
    """B48: on Windows the default is cp1252, and a file with “quotes” is read wrong or not."""
    found, read = [], 0
    for file in sorted(ROOT.rglob("*.py")):
        parts = file.relative_to(ROOT).parts
        if any(part.startswith(".") or part in ("out", "build") for part in parts):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and opens_text_without_encoding(node):
                found.append(f"{file.relative_to(ROOT)}:{node.lineno}")
            read += 1
    assert found == []
    assert read > 5000


@pytest.mark.parametrize(
    ("code", "bad"),
    [
        ("open(f)", True),
        ("open(f, 'w')", True),
        ("p.open()", True),
        ("p.open('w')", True),
        ("p.read_text()", True),
        ("p.write_text(s)", True),
        ("open(f, 'rb')", False),
        ("open(f, mode='wb')", False),
        ("p.open('rb')", False),
        ("open(f, encoding='utf-8')", False),
        ("p.read_text(encoding='utf-8')", False),
        ("p.write_text(s, encoding='utf-8')", False),
        ("p.read_bytes()", False),
        ("os.open(f, 0)", False),
    ],
)
def test_the_check_for_encodings_finds_what_it_should(code, bad):
    assert opens_text_without_encoding(ast.parse(code, mode="eval").body) == bad


def test_importing_loading_and_sampling_need_no_network(small_folder, tmp_path):
    """B45: a vocabulary that is downloaded at first use fails on a train, after long retries."""
    code = (
        "import socket, sys\n"
        "def no_network(*_, **__): raise AssertionError('a socket was opened')\n"
        "socket.socket.__init__ = socket.create_connection = socket.getaddrinfo = no_network\n"
        "import sample, train_tiny\n"
        "sys.exit(sample.main(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "Once", "--model", small_folder, "--max-new-tokens", "2"],
        cwd=ROOT, env={"HOME": str(tmp_path)}, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"Once")
