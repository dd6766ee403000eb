"""What a loop costs: count the work of a model without changing it; the loops don't know of it.

with counting(model) as counts:
    ids = generate(model, ids, 50)
print(counts.forwards, counts.positions, counts.head_rows)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

import torch

from model import GPT, Cache


@dataclass
class Forward:
    """One pass through the model, as seen from outside."""

    ids: torch.Tensor  # (B, T), the tokens it read
    hidden: tuple[int, ...]  # shape of what the blocks made of them
    cache_before: int | None  # cached positions; None without a cache
    cache_after: int | None
    seconds: float
    head_rows: int = 0  # rows of logits made from it, V * C multiplications each
    logits: torch.Tensor | None = None  # (V,), the last of these rows


@dataclass
class Counts:
    """Work done by a model, counted where it is done."""

    seen: list[Forward] = field(default_factory=list)

    @property
    def forwards(self) -> int:
        """Passes through the blocks."""
        return len(self.seen)

    @property
    def positions(self) -> int:
        """Tokens fed to those passes, summed: token-positions."""
        return sum(forward.ids.numel() for forward in self.seen)

    @property
    def head_rows(self) -> int:
        """Rows of logits."""
        return sum(forward.head_rows for forward in self.seen)


@contextmanager
def counting(model: GPT) -> Iterator[Counts]:
    """Count what `model` does inside the `with` block."""
    counts = Counts()
    hidden, head = model.hidden, model.head

    def watched_hidden(ids: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        before, start = getattr(cache, "length", None), perf_counter()
        x = hidden(ids, cache)
        seconds, after = perf_counter() - start, getattr(cache, "length", None)
        counts.seen.append(Forward(ids, tuple(x.shape), before, after, seconds))
        return x

    def watched_head(x: torch.Tensor) -> torch.Tensor:
        start = perf_counter()
        logits = head(x)
        forward = counts.seen[-1]
        forward.seconds += perf_counter() - start
        forward.head_rows += logits.numel() // logits.shape[-1]
        forward.logits = logits.flatten(0, -2)[-1].clone()
        return logits

    watched = {"hidden": watched_hidden, "head": watched_head}
    found = {name: vars(model)[name] for name in watched if name in vars(model)}
    vars(model).update(watched)  # in front of the methods of the class
    try:
        yield counts
    finally:
        for name in watched:
            del vars(model)[name]
        vars(model).update(found)
