"""What each turn of a loop did, as plain data; the loops don't know that they are watched.

steps = generate(model, ids, 50, sampler, should_stop)
turns = ((step.token, step.finish_reason) for step in steps)
for record in trace(model, tokenizer, turns, sampler, should_stop):
    print(record.fed, record.cache_after, record.chosen.text, record.finish_reason)
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import tiktoken
import torch

from model import GPT
from stages.stage2_sampling import Sampler
from stages.stage3_stopping import StopCheck
from support.counting import counting
from support.tokenizer import token_bytes


@dataclass(frozen=True)
class Candidate:
    """A token that the last position offered."""

    id: int
    text: str
    rank: int  # 1 is the likeliest
    # "model" (the softmax of the logits), then after each filter that is on: 0 is dropped
    probabilities: dict[str, float]


@dataclass(frozen=True)
class Record:
    """One turn of the loop, as plain data: `dataclasses.asdict` makes it ready for JSON."""

    step: int  # from 1
    # forward
    fed: list[int]
    fed_text: list[str]
    shapes: dict[str, tuple[int, ...]]  # of ids, hidden and logits
    cache_before: int | None  # cached positions; None without a cache
    cache_after: int | None
    milliseconds: float  # of the forward pass
    forwards: int  # so far
    token_positions: int  # so far
    # last logits, choose
    candidates: list[Candidate]  # the likeliest, and the chosen one if it isn't among them
    kept: int  # tokens that may still be chosen after the filters
    chosen: Candidate
    # append, stop check
    finish_reason: str | None
    released: str  # text that may be shown now
    held: str  # text that may not, because it may become a stop string or a character
    missing: str  # what would complete the stop string that `held` begins


def trace(
    model: GPT,
    tokenizer: tiktoken.Encoding,
    turns: Iterable[tuple[int, str | None]],
    sampler: Sampler,
    should_stop: StopCheck,
    top: int = 5,
) -> Iterator[Record]:
    """Yield a record for each turn of a loop over one sequence, whatever its stage.

    turns        the loop: each new token and, with the last, the finish reason
    sampler      the one that the loop chooses with; temperature 0 for a loop that is greedy
    should_stop  the one that the loop asks
    top          how many of the likeliest tokens a record holds

    The caller shows the text: call `should_stop.release()` after each record, as without a trace.
    """
    positions = 0
    with counting(model) as counts:
        for step, (token, reason) in enumerate(turns, start=1):
            forward = counts.seen[step - 1]
            positions += forward.ids.numel()
            assert forward.logits is not None, "each turn makes logits"
            probabilities = probabilities_of(forward.logits, sampler)
            ranked = probabilities["model"].argsort(descending=True, stable=True).tolist()
            shown = ranked[:top] if token in ranked[:top] else [*ranked[:top], token]
            candidates = [
                Candidate(
                    id,
                    token_text(tokenizer, id),
                    ranked.index(id) + 1,
                    {name: row[id].item() for name, row in probabilities.items()},
                )
                for id in shown
            ]
            fed = forward.ids[0].tolist()
            released, held, missing = verdict(should_stop, ended=reason is not None)
            yield Record(
                step=step,
                fed=fed,
                fed_text=[token_text(tokenizer, id) for id in fed],
                shapes={
                    "ids": tuple(forward.ids.shape),
                    "hidden": forward.hidden,
                    "logits": (forward.head_rows, len(forward.logits)),
                },
                cache_before=forward.cache_before,
                cache_after=forward.cache_after,
                milliseconds=1000 * forward.seconds,
                forwards=step,
                token_positions=positions,
                candidates=candidates,
                kept=int((list(probabilities.values())[-1] > 0).sum()),
                chosen=candidates[shown.index(token)],
                finish_reason=reason,
                released=released,
                held=held,
                missing=missing,
            )


def verdict(should_stop: StopCheck, ended: bool) -> tuple[str, str, str]:
    """Text that may be shown now, text held back, and what its stop string still lacks."""
    new = should_stop.text[should_stop.released :]
    cut = should_stop.utf8.getstate()[0]  # the bytes of a character that is not yet whole
    if ended:
        lost = cut and not isinstance(should_stop.matched, str)
        return new + ("\ufffd" if lost else ""), "", ""
    held = should_stop.held()
    begun = [stop for stop in should_stop.stop_strings if held and stop.startswith(held)]
    missing = min(begun, key=len, default="")[len(held) :]
    return (
        new.removesuffix(held),
        held + cut.decode("utf-8", errors="backslashreplace"),
        missing,
    )


def probabilities_of(logits: torch.Tensor, sampler: Sampler) -> dict[str, torch.Tensor]:
    """Probabilities (V,) as the model gives them, and after each of the sampler's filters."""
    logits = logits.detach().to("cpu", torch.float64)[None]
    rows = {"model": logits}
    if sampler.temperature == 0:
        rows["argmax"] = torch.full_like(logits, -torch.inf)
        rows["argmax"][0, logits.argmax()] = 0.0
    else:
        rows |= dict(sampler.each_filter(logits))
    return {name: row[0].softmax(dim=-1) for name, row in rows.items()}


def token_text(tokenizer: tiktoken.Encoding, token: int) -> str:
    """The text of one token; bytes that are no whole character are written as \\xe2."""
    return token_bytes(tokenizer, token).decode("utf-8", errors="backslashreplace")
