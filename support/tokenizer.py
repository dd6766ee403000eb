"""Text to ids and back: a `tiktoken.Encoding` built from a folder's own vocab.json and merges.txt.

Both files are GPT-2's format of byte-level BPE. vocab.json maps each token to its id and spells the
token's bytes with printable characters; merges.txt lists the pairs of tokens that were joined, in
the order in which training found them. tiktoken merges by id, lowest first, so ids have to follow
that order; they do in every vocabulary trained this way, and loading checks it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import tiktoken
from tiktoken_ext.openai_public import r50k_pat_str as GPT2_PATTERN  # splits text into words

from support.atomic import find

END_OF_TEXT = "<|endoftext|>"
TOKENIZER_FILES = ("vocab.json", "merges.txt")


def load_tokenizer(folder: Path | str) -> tiktoken.Encoding:
    """Build the tokenizer from vocab.json and merges.txt in `folder`; nothing is downloaded.

    Raises ValueError for files that are missing, broken or unsuitable.
    """
    folder = Path(folder)
    vocab_file, merges_file = (find(folder, name) for name in TOKENIZER_FILES)
    missing = [file.name for file in (vocab_file, merges_file) if not file.is_file()]
    if missing:
        raise ValueError(
            f"{folder} has no {' and no '.join(missing)}: copy both files of the tokenizer there"
        )
    try:
        return build_tokenizer({file.name: file.read_bytes() for file in (vocab_file, merges_file)})
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None


def build_tokenizer(files: Mapping[str, bytes]) -> tiktoken.Encoding:
    """Build the tokenizer from the contents of vocab.json and merges.txt.

    A vocabulary entry that is neither a byte nor the result of a merge, such as the end-of-text
    token, is a special token. Raises ValueError if the two contents don't make a tokenizer.
    """
    try:
        vocab = json.loads(files["vocab.json"])
        if not isinstance(vocab, dict) or not all(type(i) is int for i in vocab.values()):
            raise ValueError("vocab.json must map tokens to whole numbers")
        lines = files["merges.txt"].decode("utf-8").splitlines()
        merged = [line.replace(" ", "") for line in lines if line and not _is_header(line)]
        byte_of = _byte_of_character()
        ordinary = [*byte_of, *dict.fromkeys(merged)]
        ranks = {bytes(byte_of[c] for c in token): vocab[token] for token in ordinary}
        special = {token: vocab[token] for token in vocab.keys() - set(ordinary)}
    except (ValueError, AttributeError) as error:
        raise ValueError(f"vocab.json or merges.txt is broken: {error}") from None
    except KeyError as error:
        raise ValueError(
            f"vocab.json lacks the token {error}, which is one of the 256 bytes or of the merges"
        ) from None
    merge_ids = [vocab[token] for token in ordinary[256:]]
    if merge_ids != sorted(merge_ids) or sorted(vocab.values()) != list(range(len(vocab))):
        raise ValueError(
            f"the ids in vocab.json must be 0 to {len(vocab) - 1}, "
            "with the merges in the order of merges.txt"
        )
    return tiktoken.Encoding(
        "gpt2-style", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens=special
    )


def _is_header(line: str) -> bool:
    return line.startswith("#version")


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
    # Imported here because only training needs it, and every run of sample.py would wait for it.
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

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
