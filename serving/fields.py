"""The fields of a request, and what may stand in them. Only the prompt is needed:

{"id": "a", "prompt": "Once upon a time", "max_new_tokens": 50, "temperature": 0.8, "top_k": 40,
 "top_p": 0.9, "min_p": 0.05, "seed": 7, "stop": ["."]}
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tiktoken

from stages.stage2_sampling import Sampler
from stages.stage3_stopping import StopCheck
from stages.stage6_serving import Request

NUMBER = (int, float)
FIELDS = {
    "prompt": (str,), "max_new_tokens": (int,), "seed": (int,), "stop": (str, list),
    "temperature": NUMBER, "top_k": (int,), "top_p": NUMBER, "min_p": NUMBER,
}  # fmt: skip


def parse(line: bytes) -> dict[str, Any]:
    """The fields of a request. ValueError for what is no request, with what one looks like."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this line is not JSON: {error}") from None
    if not isinstance(fields, dict) or "prompt" not in fields:
        raise ValueError('a request is an object with a prompt, such as {"prompt": "Once"}')
    for name, value in fields.items():
        if name == "id":
            continue
        if name not in FIELDS:
            raise ValueError(f"{name} is no field of a request: these are id, {', '.join(FIELDS)}")
        if type(value) not in FIELDS[name]:  # type: True is no number here
            kinds = " or ".join(kind.__name__ for kind in FIELDS[name])
            raise ValueError(f"{name} is {value!r}: it must be {kinds}")
    if not all(isinstance(text, str) for text in fields.get("stop", [])):
        raise ValueError(f"stop is {fields['stop']!r}: it must be a text or a list of texts")
    return fields


def request_of(
    fields: Mapping[str, Any],
    tokenizer: tiktoken.Encoding,
    encode: Callable[[str], list[int]],
    eos_ids: Iterable[int],
) -> Request:
    """The engine's request, from fields of which none is missing. ValueError for a bad setting."""
    settings = dict(fields)
    prompt, new, stop = (settings.pop(name) for name in ("prompt", "max_new_tokens", "stop"))
    should_stop = StopCheck(tokenizer, list(eos_ids), stop)
    return Request(encode(prompt), new, Sampler(**settings), should_stop)
