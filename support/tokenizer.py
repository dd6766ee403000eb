"""Text to ids and back: a `tiktoken.Encoding` built from a folder's own files.

GPT-2's format of byte-level BPE has two. vocab.json maps each token to its id and spells the
token's bytes with printable characters; merges.txt lists the pairs of tokens that were joined, in
the order in which training found them. tokenizer.json holds both. tiktoken merges by id, lowest
first, so ids have to follow that order; they do in every vocabulary trained this way, and loading
checks it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import tiktoken
from tiktoken_ext.openai_public import r50k_pat_str as GPT2_PATTERN  # splits text into words
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from support.atomic import find
from support.tokenizer_json import Contents, add_config_tokens, read_tokenizer_json

END_OF_TEXT = "<|endoftext|>"
TOKENIZER_FILES = ("vocab.json", "merges.txt")


def load_tokenizer(folder: Path | str, rows: int | None = None) -> tiktoken.Encoding:
    """Build the tokenizer of `folder` from its own files; nothing is downloaded.

    These are vocab.json and merges.txt, or tokenizer.json alone. Where a folder has all three, they
    must agree. Added tokens behind the `rows` of a model's embedding, such as a pad token that only
    training used, are left out. Raises ValueError for files that are missing, broken or unfit.
    """
    folder = Path(folder)
    names = (*TOKENIZER_FILES, "tokenizer.json", "tokenizer_config.json")
    found = {name: find(folder, name) for name in names}
    files = {name: file.read_bytes() for name, file in found.items() if file.is_file()}
    missing = [name for name in TOKENIZER_FILES if name not in files]
    if missing and "tokenizer.json" not in files:
        raise ValueError(
            f"{folder} has no {' and no '.join(missing)}, nor a tokenizer.json: "
            "copy the tokenizer's files there"
        )
    try:
        sources = TOKENIZER_FILES
        if "tokenizer.json" in files:
            contents = read_tokenizer_json(files["tokenizer.json"])
            sources = ("tokenizer.json", "tokenizer.json")
            if not missing:
                _require_agreement(contents, _read_pair(files))
        else:
            contents = _read_pair(files)
        if "tokenizer_config.json" in files:
            contents = add_config_tokens(contents, files["tokenizer_config.json"])
        return _build(contents, *sources, rows)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None


def build_tokenizer(files: Mapping[str, bytes]) -> tiktoken.Encoding:
    """Build the tokenizer from the contents of vocab.json and merges.txt.

    A vocabulary entry that is neither a byte nor the result of a merge, such as the end-of-text
    token, is a special token. Raises ValueError if the two contents don't make a tokenizer.
    """
    return _build(_read_pair(files), *TOKENIZER_FILES)


def _read_pair(files: Mapping[str, bytes]) -> Contents:
    try:
        vocab = json.loads(files["vocab.json"])
        if not isinstance(vocab, dict):
            raise ValueError("vocab.json must map tokens to whole numbers")
        header, *lines = files["merges.txt"].decode("utf-8").splitlines() or [""]
    except ValueError as error:
        raise ValueError(f"vocab.json or merges.txt is broken: {error}") from None
    lines = lines if header.startswith("#version") else [header, *lines]
    merges = [line for line in lines if line]
    ordinary = {*_byte_of_character(), *(merge.replace(" ", "") for merge in merges)}
    return Contents(vocab, merges, vocab.keys() - ordinary)


def _build(
    contents: Contents, vocab_file: str, merges_file: str, rows: int | None = None
) -> tiktoken.Encoding:
    vocab, merges, special = contents
    if not all(type(i) is int for i in vocab.values()):
        raise ValueError(f"{vocab_file} is broken: it must map tokens to whole numbers")
    byte_of = _byte_of_character()
    pairs = [(merge.split(" ")[0], merge.split(" ")[-1]) for merge in merges]
    for merge, pair in zip(merges, pairs, strict=True):
        if " ".join(pair) != merge or not byte_of.keys() >= set("".join(pair)):
            raise ValueError(
                f"{vocab_file} or {merges_file} is broken: {merge!r} is no pair of tokens"
            )
    ordinary = [*byte_of, *map("".join, pairs)]
    for token in (*ordinary, *(part for pair in pairs for part in pair)):
        if token not in vocab:
            raise ValueError(
                f"{vocab_file} lacks the token {token!r}, which is one of the 256 bytes or of the "
                "merges"
            )
    if vocab.keys() - special != set(ordinary) or special & set(ordinary):
        [odd, *_] = sorted((vocab.keys() - special) ^ set(ordinary) | special & set(ordinary))
        raise ValueError(
            f"{vocab_file} has {odd!r}, which must be either made by a merge or a special token"
        )
    _require_apart(special)
    ids = [vocab[token] for token in ordinary[256:]]
    if ids != sorted(set(ids)) or sorted(vocab.values()) != list(range(len(vocab))):
        raise ValueError(
            f"the ids in {vocab_file} must be 0 to {len(vocab) - 1}, "
            f"with the merges in the order of {merges_file}"
        )
    # tiktoken knows ids and not pairs: it joins any two tokens whose bytes are a token. That comes
    # to the same if each token is what its own bytes are joined to.
    bpe = models.BPE(vocab, pairs)
    for token in ordinary:
        if len(bpe.tokenize(token)) > 1:
            raise ValueError(f"{merges_file} has a merge to {token!r} that is never reached")
    return tiktoken.Encoding(
        "gpt2-style",
        pat_str=GPT2_PATTERN,
        mergeable_ranks={bytes(byte_of[c] for c in token): vocab[token] for token in ordinary},
        special_tokens={
            token: vocab[token]
            for token in special
            if rows is None or vocab[token] < rows or token == END_OF_TEXT
        },
    )


def _require_apart(special: set[str]) -> None:
    """ValueError if two special tokens can share characters: which is found is then not agreed."""
    begins = {(token[:n], token) for token in special for n in range(1, len(token))}
    starts = {begin for begin, _ in begins}
    for token in special:
        ends = range(len(token) + 1)
        pieces = {token[i:j] for i in ends for j in ends if i < j} - {token}
        inside = pieces & special
        tails = {token[i:] for i in ends[1:-1]} & starts
        if inside or any((tail, other) in begins for tail in tails for other in special - {token}):
            raise ValueError(f"the special token {token!r} overlaps with another: rename one")


def _require_agreement(single: Contents, pair: Contents) -> None:
    """ValueError if tokenizer.json contradicts vocab.json and merges.txt; it may add specials."""
    for token, number in pair.vocab.items():
        if single.vocab.get(token) != number:
            raise ValueError(
                f"vocab.json and tokenizer.json disagree about {token!r} "
                f"({number} and {single.vocab.get(token)}): keep the files of one tokenizer"
            )
    if single.merges != pair.merges:
        raise ValueError(
            "merges.txt and tokenizer.json disagree about the merges: keep the files of one "
            "tokenizer"
        )


def _byte_of_character() -> dict[str, int]:
    """How the files spell bytes: printable ones as themselves, the others from U+0100 on.

    Source: `bytes_to_unicode` in OpenAI's GPT-2 encoder.py. A space, byte 32, is spelled "Ġ".
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def token_bytes(tokenizer: tiktoken.Encoding, token: int) -> bytes:
    """The bytes of one token; a token may end inside a character. ValueError for an unknown id."""
    try:
        return tokenizer.decode_single_token_bytes(token)
    except (KeyError, OverflowError):
        raise ValueError(
            f"id {token} is not a token: the tokenizer has ids 0 to {tokenizer.n_vocab - 1}"
        ) from None


def decode(tokenizer: tiktoken.Encoding, ids: Sequence[int]) -> str:
    """The text of several tokens; bytes that are no UTF-8 become U+FFFD."""
    return b"".join(token_bytes(tokenizer, i) for i in ids).decode("utf-8", errors="replace")


def train_bpe(texts: Iterable[str], vocab_size: int) -> dict[str, bytes]:
    """Learn a byte-level BPE from texts; returns the contents of vocab.json and merges.txt.

    It has the 256 bytes, then merges while there are pairs to merge and fewer than `vocab_size`
    tokens, then the end-of-text token, which so takes the last id, as in GPT-2.
    """
    if vocab_size < 257:
        raise ValueError(f"vocab_size is {vocab_size}: 256 bytes and end-of-text need 257")
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        initial_alphabet=sorted(_byte_of_character()),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    with TemporaryDirectory() as folder:
        bpe.model.save(folder)
        files = {name: (Path(folder) / name).read_bytes() for name in TOKENIZER_FILES}
    vocab = json.loads(files["vocab.json"])
    vocab[END_OF_TEXT] = len(vocab)
    files["vocab.json"] = json.dumps(vocab, ensure_ascii=False).encode()
    return files
