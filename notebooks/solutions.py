"""Solutions of the exercises, one function or class each, by the name an exercise asks for."""

from collections.abc import Callable
from random import Random

import numpy as np
import torch

from model import GPT
from stages.stage2_sampling import Choose

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


# Lesson 02. Why only the last row?


def sentence_probabilities(model: GPT, ids: torch.Tensor) -> torch.Tensor:
    probs = model(ids).softmax(dim=-1)  # (B, T, V)
    asked = ids[:, 1:, None]  # row t is about token t + 1
    return probs[:, :-1].gather(-1, asked)[:, :, 0]


def reads_last_row(model: GPT, loop: Callable[[GPT, torch.Tensor, int], torch.Tensor]) -> bool:
    generator = torch.Generator().manual_seed(0)
    for T in (1, 2, 6):
        text = torch.randint(model.config.vocab_size, (3, T), generator=generator)
        ids = loop(model, text, 4)
        for t in range(T, T + 4):
            if not ids[:, t].equal(model(ids[:, :t])[:, -1].argmax(dim=-1)):
                return False
    return True


def logits_of_last_row(model: GPT, ids: torch.Tensor) -> torch.Tensor:
    hidden = model.hidden(ids)  # (B, T, C)
    return model.head(hidden[:, -1])


# Lesson 03. From logits to a token: greedy and temperature


def temperature(logits: torch.Tensor, T: float) -> torch.Tensor:
    shifted = logits - logits.amax(dim=-1, keepdim=True)
    if T > 0:
        return (shifted / T).softmax(dim=-1)
    only = torch.zeros_like(logits)
    return only.scatter(-1, logits.argmax(dim=-1, keepdim=True), 1.0)


def ratio_at(p1: float, p2: float, T: float) -> float:
    return (p1 / p2) ** (1 / T)


# Lesson 05. Can randomness be replayed?


def token_at(probs: torch.Tensor, u: float) -> int:
    ends = probs.double().cumsum(dim=0)
    return int((ends / ends[-1] > u).nonzero()[0])


def replays(make_choose: Callable[[int], Choose]) -> bool:
    flat = torch.zeros(1, 1000)
    rules = make_choose(1), make_choose(1), make_choose(2)
    turns = [[choose(flat).item() for choose in rules] for _ in range(5)]
    one, again, other = zip(*turns, strict=True)
    return one == again and one != other and len(set(one)) > 1


def choose_for(seeds: list[int]) -> Choose:
    numbers = [Random(seed) for seed in seeds]

    def choose(logits: torch.Tensor) -> torch.Tensor:
        rows = logits.double().softmax(dim=-1)
        pairs = zip(rows, numbers, strict=True)
        return torch.tensor([[token_at(row, own.random())] for row, own in pairs])

    return choose
