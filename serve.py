"""Many requests from a file or a pipe: what `python sample.py --requests FILE` runs.

One JSON object a line comes in; only the prompt is needed, the shell's options are the defaults of
the rest, and the request on line n has the seed of the command plus n - 1:

    {"id": "a", "prompt": "Once upon a time", "max_new_tokens": 50, "temperature": 0.8, "top_k": 40,
     "top_p": 0.9, "min_p": 0.05, "seed": 7, "stop": ["."]}

One a line goes out as soon as a request has ended, so not in the order of the lines: `line` and
`id` say whose it is. What can't run is answered, too, with an `error` that says what to do.
"""

import json
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import tiktoken

from model import GPT
from stages.stage2_sampling import Sampler
from stages.stage3_stopping import StopCheck
from stages.stage6_serving import Engine, Request

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


def lines_of(source: Path) -> "queue.Queue[bytes | None]":
    """The lines of a file, or of stdin for "-", as they come, then None.

    A thread reads them, because a pipe may be slower than the engine, which has to go on meanwhile.
    OSError if the file can't be opened.
    """
    # Not sys.stdin: a command that ends early would wait for the thread that reads from it.
    file = open(0 if str(source) == "-" else source, "rb")  # noqa: SIM115  the thread closes it
    lines: queue.Queue[bytes | None] = queue.Queue(maxsize=64)

    def read() -> None:
        with file:
            for line in file:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def report(request: Request) -> dict[str, Any]:
    """What is known about a request that has ended; times in seconds from its submission."""
    check = request.should_stop
    check.close()
    first, last = request.time_to_first_token, (request.token_times or [request.submitted_at])[-1]
    return {
        "text": check.text,
        "ids": request.tokens,
        "finish_reason": request.finish_reason,
        "matched": check.matched,
        "prompt_tokens": len(request.prompt),
        "new_tokens": len(request.tokens),
        "seconds": round(last - request.submitted_at, 4),
        "seconds_to_first_token": None if first is None else round(first, 4),
        "longest_gap": round(max(request.gaps, default=0.0), 4),
    } | ({"error": str(request.error)} if request.error else {})


def serve(
    source: Path,
    model: GPT,
    tokenizer: tiktoken.Encoding,
    encode: Callable[[str], list[int]],
    eos_ids: Iterable[int],
    defaults: Mapping[str, Any],
    slots: int,
) -> None:
    """Answer every line of the file, or of stdin for "-", on stdout; a summary goes to stderr.

    Ctrl-C answers those that run with the text so far. OSError if the file can't be opened.
    """
    engine = Engine(model, slots)
    alive: dict[Request, dict[str, Any]] = {}  # and how each answer begins
    counts = {"requests": 0, "refused": 0, "new tokens": 0}

    def answer(fields: dict[str, Any]) -> None:
        print(json.dumps(fields), flush=True)

    def submit(line: bytes, number: int) -> None:
        """Put the request of a line into the queue, or answer why that can't be."""
        head: dict[str, Any] = {"line": number}
        try:
            fields = parse(line)
            head |= {"id": fields.pop("id")} if "id" in fields else {}
            fields = {**defaults, "seed": defaults["seed"] + number - 1, **fields}
            prompt, stop = encode(fields.pop("prompt")), fields.pop("stop")
            new, seed = fields.pop("max_new_tokens"), fields["seed"]
            request = Request(prompt, new, Sampler(**fields), StopCheck(tokenizer, eos_ids, stop))
            engine.submit(request)
            alive[request] = head | {"seed": seed}
        except Exception as error:  # whatever is wrong with one line, the others are answered
            counts["refused"] += 1
            answer(head | {"error": str(error)})

    def answer_ended() -> None:
        for request in [request for request in alive if request.finish_reason]:
            counts["new tokens"] += len(request.tokens)
            answer(alive.pop(request) | report(request))

    start = perf_counter()
    lines, number, more = lines_of(source), 0, True
    try:
        while more or alive:
            while more and not engine.scheduler.full:
                try:
                    line = lines.get(block=not alive)  # wait only with nothing else to do
                except queue.Empty:
                    break
                more, number = line is not None, number + 1
                if line and line.strip():
                    counts["requests"] += 1
                    submit(line, number)
            engine.step()
            answer_ended()
    except KeyboardInterrupt:
        for request in alive:
            engine.cancel(request)
        answer_ended()
        raise
    finally:
        seconds = perf_counter() - start
        print(
            f"[served] {counts['requests']} requests, {counts['refused']} of them refused, "
            f"{counts['new tokens']} new tokens; {seconds:.2f} s, "
            f"{counts['new tokens'] / seconds:.0f} tokens/s; stage 6, seed {defaults['seed']}",
            file=sys.stderr,
        )
