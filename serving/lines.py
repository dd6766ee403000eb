"""Many requests from a file or a pipe: what `python sample.py --requests FILE` runs.

One JSON object a line comes in, with the fields that `fields.py` lists. The shell's options are the
defaults of those left out, and the request on line n has the seed of the command plus n - 1.

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
from serving.fields import parse, request_of
from stages.stage3_stopping import StopCheck
from stages.stage6_serving import Engine, Request


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
    assert isinstance(check, StopCheck)  # as request_of made it
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
            request = engine.submit(request_of(fields, tokenizer, encode, eos_ids))
            alive[request] = head | {"seed": fields["seed"]}
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
