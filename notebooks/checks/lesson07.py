"""Checkers of lesson 07: the plain loop's work, counted."""

from collections.abc import Callable
from random import Random
from types import SimpleNamespace

import torch

from generate import generate
from model import GPT, Cache, GPTConfig
from notebooks.checks.evidence import Evidence, Failure, attempt, number_from, text_from
from notebooks.checks.models import random_ids, random_model
from stages import stage3_stopping, stage4_kv_cache
from stages.stage2_sampling import greedy
from support.counting import counting

PLAIN, CACHED = stage3_stopping.generate, stage4_kv_cache.generate


@torch.no_grad()
def check_token_positions(answer: Callable[[int, int], tuple[int, int]]) -> Evidence:
    """Compare with counters around both loops, for 20 pairs of prompt and new tokens."""
    model, random = random_model(block_size=32), Random(7)
    pairs = [(1, 0), (2, 0), (1, 1)]
    pairs += [(random.randint(1, 16), random.randint(0, 16)) for _ in range(17)]
    for P, N in sorted(pairs, key=lambda pair: (pair[1] == 0, sum(pair))):
        case = f"a prompt of {P}, {N} new tokens"
        target = _count(model, PLAIN, P, N), _count(model, CACHED, P, N)
        yours = attempt(case, _pair_from, answer, P, N)
        if yours != target:
            raise Failure(case, f"{target} counted", yours, _why_positions(P, N, target, yours))
    return Evidence(True, f"passed: your formulas equal the counters for {len(pairs)} pairs")


def _pair_from(answer: Callable[[int, int], tuple[int, int]], P: int, N: int) -> tuple[int, int]:
    plain, ideal = answer(P, N)
    return plain, ideal


def _count(model: GPT, loop: Callable, P: int, N: int) -> int:
    with counting(model) as counts:
        for _ in loop(model, random_ids(P, model), N, greedy, lambda token: None):
            pass
    return counts.positions


def _why_positions(P: int, N: int, target: tuple[int, ...], yours: tuple[int, ...]) -> str:
    if N == 0:
        return "no new tokens: no forward is run, not even over the prompt"
    if yours[0] == target[0] + P + N or yours[1] == target[1] + 1:
        return f"you feed the last token too, but nothing comes after it: {N} tokens, {N} forwards"
    if yours[0] < target[0]:
        return "too few: the plain loop reads the prompt again at each turn"
    turns = " + ".join(str(P + i) for i in range(min(N, 4))) + (" + ..." if N > 4 else "")
    return f"the plain loop feeds {turns}"


@torch.no_grad()
def check_lean_generate(answer: Callable[[GPT, torch.Tensor, int], torch.Tensor]) -> Evidence:
    """Tokens of the plain loop, N forwards, one row of logits each."""
    model, random = random_model(block_size=16), Random(7)
    cases = [(1, 0), (1, 1), (2, 2), (6, 10)]
    cases += [(random.randint(1, 8), random.randint(0, 8)) for _ in range(8)]
    for P, N in sorted(cases, key=lambda case: (case[1] == 0, sum(case))):
        ids, case = random_ids(P, model, seed=P + N), f"a prompt of {P}, {N} new tokens"
        target = generate(model, ids, N)[0].tolist()
        before = ids.clone()
        with counting(model) as counts:
            yours = attempt(case, text_from, answer, model, ids, N)
        if not ids.equal(before):
            raise Failure(case, "the prompt unchanged", "a changed prompt", "append to a copy")
        if yours != target:
            why = (
                f"{len(yours) - P} new tokens, not {N}: the last one is missing"
                if len(yours) < len(target)
                else f"token {_first(target, yours)} of the text is the first that differs"
            )
            raise Failure(case, target, yours, why)
        if counts.forwards != N:
            why = (
                "max_new_tokens is 0, and a forward is run for nothing"
                if N == 0
                else f"one forward too many? {N} tokens need the logits of {N} forwards"
            )
            raise Failure(case, f"{N} forwards", f"{counts.forwards} forwards", why)
        if counts.head_rows != N:
            why = "the head ran on rows that no token is chosen from: hand it the last one only"
            raise Failure(case, f"{N} rows of logits", f"{counts.head_rows} rows", why)
        if N == 10:
            cost = f"{counts.forwards} forwards, {counts.positions} token-positions"
    return Evidence(
        True,
        f"passed: the plain loop's tokens in {len(cases)} cases\n"
        f"  cost of 10 tokens after 6: {cost}, one row of logits each",
    )


def _first(target: list[int], yours: list[int]) -> int:
    pairs = zip(target, yours, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(target))


class Clock:
    """Has of a model what the loops use; each forward of T tokens moves the clock."""

    def __init__(self, fixed: float, per_position: float):
        self.config = GPTConfig(block_size=64, vocab_size=2, n_layer=1, n_head=1, n_embd=1)
        self.wte = SimpleNamespace(weight=torch.zeros(2, 1))
        self.fixed, self.per_position, self.time = fixed, per_position, 0.0

    def hidden(self, ids: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        self.time += self.fixed + self.per_position * ids.shape[1]
        if cache is not None:
            cache.advance(ids.shape[1])
        return torch.zeros(*ids.shape, 2)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


@torch.no_grad()
def check_time_ratio(answer: Callable[[int, int, float, float], float]) -> Evidence:
    """Compare with both loops on a model whose clock follows the rule exactly."""
    random = Random(7)
    cases = [(1, 1, 1.0, 0.0), (1, 2, 0.0, 1.0), (1, 2, 1.0, 1.0)]
    for _ in range(17):
        costs = random.choice((0.5, 1.0, 4.0)), random.choice((0.25, 1.0))
        cases.append((random.randint(1, 30), random.randint(1, 30), *costs))
    for P, N, fixed, per_position in sorted(cases, key=lambda case: (case[0] + case[1], case)):
        case = f"P {P}, N {N}, fixed {fixed}, per position {per_position}"
        times = []
        for loop in (PLAIN, CACHED):
            clock, ids = Clock(fixed, per_position), torch.zeros(1, P, dtype=torch.long)
            for _ in loop(clock, ids, N, greedy, lambda token: None):
                pass
            times.append(clock.time)
        target = times[0] / times[1]
        yours = attempt(case, number_from, answer, P, N, fixed, per_position)
        if not abs(yours - target) <= 1e-9 * target:
            clocks = f"the clocks show {times[0]:g} for plain and {times[1]:g} for ideal"
            if abs(yours * target - 1) < 1e-9:
                why = "yours is upside down: plain over ideal, 1 or more"
            elif fixed and N > 1:
                why = f"the fixed cost is paid at each of the {N} forwards, in both loops"
            else:
                why = "compare the sums of 07a, each with its forwards"
            raise Failure(case, f"{target:.4f}", f"{yours:.4f}", f"{clocks}\n  {why}")
    return Evidence(True, f"passed: your ratio is the clocks' in {len(cases)} cases")
