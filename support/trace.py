"""Instruments that watch a run without changing it; the loops don't know about them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from model import GPT, Cache


@dataclass
class Counts:
    """Work done by a model, counted where it is done."""

    forwards: int = 0  # passes through the blocks
    positions: int = 0  # tokens fed to those passes, summed: token-positions
    head_rows: int = 0  # rows of logits made from them, V * C multiplications each


@contextmanager
def counting(model: GPT) -> Iterator[Counts]:
    """Count what `model` does inside the `with` block."""
    counts = Counts()
    hidden, head = model.hidden, model.head

    def counted_hidden(ids: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        counts.forwards += 1
        counts.positions += ids.numel()
        return hidden(ids, cache)

    def counted_head(x: torch.Tensor) -> torch.Tensor:
        counts.head_rows += x.numel() // x.shape[-1]
        return head(x)

    model.hidden, model.head = counted_hidden, counted_head
    try:
        yield counts
    finally:
        model.hidden, model.head = hidden, head
