"""Solutions of the exercises, one function or class each, by the name an exercise asks for."""

from collections.abc import Callable

import numpy as np
import torch

# Lesson 01. What is the loop?


def generate_ids(
    model: Callable[[list[int]], np.ndarray], ids: list[int], max_new_tokens: int, eos: int
) -> list[int]:
    ids = list(ids)
    for _ in range(max_new_tokens):
        token = int(model(ids).argmax())
        if token == eos:
            break
        ids.append(token)
    return ids


def count_forwards(P: int, N: int, eos_step: int | None) -> int:
    return N if eos_step is None else min(N, eos_step)


# Lesson 03. From logits to a token: greedy and temperature


def temperature(logits: torch.Tensor, T: float) -> torch.Tensor:
    shifted = logits - logits.amax(dim=-1, keepdim=True)
    if T > 0:
        return (shifted / T).softmax(dim=-1)
    only = torch.zeros_like(logits)
    return only.scatter(-1, logits.argmax(dim=-1, keepdim=True), 1.0)


def ratio_at(p1: float, p2: float, T: float) -> float:
    return (p1 / p2) ** (1 / T)
