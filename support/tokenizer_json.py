"""Read `tokenizer.json`, the one file in which today's transformers keeps a tokenizer.

The file can describe many kinds of tokenizer. Only GPT-2's is read: byte-level BPE over GPT-2's way
to split text, with nothing before it or after it. Any other part would change the ids of some text,
so it is refused by its name.
"""

import json
from typing import Any, NamedTuple

# What GPT-2 has in each part. None stands for null, and for a part that is left out.
GPT2: dict[str, tuple[Any, ...]] = {
    "normalizer": (None,),
    "pre_tokenizer.type": ("ByteLevel",),
    "pre_tokenizer.add_prefix_space": (False,),
    "pre_tokenizer.use_regex": (True, None),  # the regular expression is GPT-2's
    "decoder.type": ("ByteLevel",),
    "model.type": ("BPE", None),
    "model.dropout": (None, 0),
    "model.continuing_subword_prefix": ("", None),
    "model.end_of_word_suffix": ("", None),
    "model.byte_fallback": (False, None),
    "model.ignore_merges": (False, None),
}
ADDED_TOKEN = {"special": True, "lstrip": False, "rstrip": False, "single_word": False}
# The classes whose ids are those of the files. Others, such as RobertaTokenizer, add tokens.
CLASSES = ("GPT2Tokenizer", "PreTrainedTokenizer", "TokenizersBackend")


class Contents(NamedTuple):
    """What makes a byte-level BPE; vocab.json and merges.txt hold the same."""

    vocab: dict[str, int]  # each token, spelled with printable characters, and its id
    merges: list[str]  # "Ġ t": pairs of tokens to join, the most urgent first
    special: set[str]  # tokens that stand for no text, such as its end


def read_tokenizer_json(content: bytes) -> Contents:
    """What a tokenizer.json says. ValueError, naming the part, if it isn't a GPT-2's."""
    try:
        file = json.loads(content)
        for part, allowed in GPT2.items():
            _require(part, _part(file, part), allowed)
        if not _adds_nothing(file.get("post_processor")):
            raise ValueError("its post_processor adds tokens, GPT-2's adds none")
        vocab: dict[str, int] = dict(file["model"]["vocab"])
        special: set[str] = set()
        for token in file.get("added_tokens") or []:
            _add(token, token["id"], vocab, special)
        merges = [m if isinstance(m, str) else " ".join(m) for m in file["model"]["merges"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"tokenizer.json is broken: {error!r}") from None
    except ValueError as error:
        raise ValueError(f"tokenizer.json can't be used: {error}") from None
    return Contents(vocab, merges, special)


def add_config_tokens(contents: Contents, config_file: bytes) -> Contents:
    """The contents with the special tokens that a tokenizer_config.json adds.

    ValueError if it asks for something else, by which transformers would give other ids.
    """
    vocab, special = dict(contents.vocab), set(contents.special)
    try:
        config = json.loads(config_file)
        for name in ("add_prefix_space", "add_bos_token", "add_eos_token"):
            _require(name, config.get(name), (False, None))
        name = config.get("tokenizer_class")
        _require("tokenizer_class", name and name.removesuffix("Fast"), (*CLASSES, None))
        for number, token in (config.get("added_tokens_decoder") or {}).items():
            _add(token, int(number), vocab, special)
        for name, token in _named_tokens(config):
            text = token["content"] if isinstance(token, dict) else token
            if text is not None and text not in special:
                raise ValueError(
                    f"its {name} {text!r} is no special token of the tokenizer's files"
                )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"tokenizer_config.json is broken: {error!r}") from None
    except ValueError as error:
        raise ValueError(f"tokenizer_config.json can't be used: {error}") from None
    return Contents(vocab, contents.merges, special)


def _add(token: dict[str, Any], number: int, vocab: dict[str, int], special: set[str]) -> None:
    """Add a special token. ValueError for one at which any text would be split otherwise."""
    text = token["content"]
    if not isinstance(text, str) or not text:
        raise ValueError(f"an added token is {text!r}: it must be a text")
    for name, value in ADDED_TOKEN.items():
        _require(f"added token {text!r}: {name}", token.get(name, value), (value,))
    if vocab.setdefault(text, number) != number:
        raise ValueError(f"{text!r} has two ids, {vocab[text]} and {number}")
    special.add(text)


def _named_tokens(config: dict[str, Any]) -> list[tuple[str, Any]]:
    """The special tokens that have a part to play, such as pad_token, each with its name."""
    found = [(name, token) for name, token in config.items() if name.endswith("_token")]
    found = [(name, token) for name, token in found if not isinstance(token, bool)]
    for name in ("extra_special_tokens", "additional_special_tokens"):
        more = config.get(name) or []
        found += [(name, each) for each in (more.values() if isinstance(more, dict) else more)]
    return found


def _part(file: dict[str, Any], path: str) -> Any:
    """The value at a path such as model.type; None for what is left out."""
    *above, last = path.split(".")
    for name in above:
        file = file.get(name) or {}
    return file.get(last)


def _require(part: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if not any(value == each and type(value) is type(each) for each in allowed):
        kind = value.get("type", value) if isinstance(value, dict) else value
        raise ValueError(f"its {part} is {kind!r}, GPT-2's is {allowed[0]!r}")


def _adds_nothing(processor: dict[str, Any] | None) -> bool:
    """Whether a post-processor leaves one text's ids alone."""
    if processor is None or processor.get("type") == "ByteLevel":  # this one moves offsets
        return True
    if processor.get("type") == "Sequence":
        return all(map(_adds_nothing, processor["processors"]))
    return processor.get("type") == "TemplateProcessing" and all(
        "Sequence" in piece for piece in processor["single"]
    )
