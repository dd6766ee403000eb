"""Checkers of lesson 01: the loop with its edges, and how many forwards it runs."""

from collections.abc import Callable
from random import Random

import numpy as np
import torch

from model import GPT
from notebooks.checks.evidence import Evidence, Failure, attempt, number_from
from notebooks.checks.models import random_ids, random_model
from stages.stage2_sampling import greedy
from stages.stage3_stopping import generate
from support.counting import counting

EOS = 0
MOST_FORWARDS = 40


class HashModel:
    """Logits are a hash of all tokens read, but for the end token, which comes where it is told."""

    def __init__(self, prompt: list[int], eos_step: int | None):
        self.eos_length = None if eos_step is None else len(prompt) + eos_step - 1
        self.read: list[list[int]] = []

    def __call__(self, ids: list[int]) -> np.ndarray:
        if len(self.read) == MOST_FORWARDS:
            raise RuntimeError(f"{MOST_FORWARDS} forwards, and still going: does your loop end?")
        self.read.append(list(ids))
        logits = np.random.default_rng(self.read[-1]).random(6)
        logits[EOS] = 2 if len(ids) == self.eos_length else -1
        return logits


def check_generate_ids(answer: Callable[..., list[int]]) -> Evidence:
    """Compare texts, prompts and forwards on a model that reads every token."""
    random = Random(1)
    cases: list[tuple[list[int], int, int | None]] = [
        ([3], 0, None), ([3], 1, None), ([3], 2, None), ([3], 2, 1), ([2, 3], 2, 2),
        ([EOS, 4], 3, None), ([EOS], 3, 2),
    ]  # fmt: skip
    for _ in range(13):
        prompt = [random.randint(1, 5) for _ in range(random.randint(1, 5))]
        cases.append((prompt, random.randint(0, 8), random.choice((None, 1, 3, 5))))
    for prompt, N, eos_step in sorted(cases, key=lambda c: (len(c[0]) + c[1], c[2] or 0, c[0])):
        case = f"prompt {prompt}, {N} new tokens"
        case += f", the end token {EOS} is new token {eos_step}" if (eos_step or N + 1) <= N else ""
        target, reads = _run(HashModel(prompt, eos_step), prompt, N)
        model, given = HashModel(prompt, eos_step), list(prompt)
        yours = attempt(case, _ids_from, answer, model, given, N, EOS)
        if yours != target:
            raise Failure(case, target, yours, _why_text(prompt, target, yours, reads, model.read))
        if given != prompt:
            why = "your function wrote into the caller's list: append to a copy"
            raise Failure(case, f"the prompt stays {prompt}", f"the prompt is now {given}", why)
        if len(model.read) != len(reads):
            why = "a forward whose logits no token is chosen from"
            forwards = f"{len(reads)} forwards", f"{len(model.read)} forwards"
            raise Failure(case, *forwards, why)
    return Evidence(
        True,
        f"passed: {len(cases)} texts, their prompts unchanged\n"
        f"  cost of the last: {len(model.read)} forwards, {sum(map(len, model.read))} "
        "token-positions, no forward in vain",
    )


def _ids_from(answer: Callable[..., list[int]], *arguments: object) -> list[int]:
    return [int(token) for token in answer(*arguments)]


def _run(model: HashModel, prompt: list[int], N: int) -> tuple[list[int], list[list[int]]]:
    ids = list(prompt)
    for _ in range(N):
        token = int(model(ids).argmax())
        if token == EOS:
            break
        ids = [*ids, token]
    return ids, model.read


def _why_text(
    prompt: list[int],
    target: list[int],
    yours: list[int],
    reads: list[list[int]],
    your_reads: list[list[int]],
) -> str:
    if yours == target[len(prompt) :]:
        return "these are the new tokens alone: return the prompt and what follows it"
    if yours == [*target, EOS]:
        return "the end token ends the text and is not part of it"
    if EOS in yours[len(prompt) :]:
        return "the text goes on after the end token"
    if EOS in prompt and yours == prompt:
        return "an end token in the prompt is no reason to stop: only a new one is"
    for turn, (right, read) in enumerate(zip(reads, your_reads, strict=False), start=1):
        if read != right:
            return f"turn {turn} is the first that differs: it should read {right}, yours {read}"
    if len(yours) != len(target):
        return f"{len(target) - len(prompt)} new tokens, yours has {len(yours) - len(prompt)}"
    return "the model read the right tokens: choose the one with the largest logit"


@torch.no_grad()
def check_count_forwards(answer: Callable[[int, int, int | None], int]) -> Evidence:
    """Compare with a counter around the project's loop."""
    model, random = random_model(block_size=32), Random(1)
    cases: list[tuple[int, int, int | None]] = [
        (1, 0, None), (1, 1, None), (2, 3, None), (2, 3, 1), (1, 3, 5)
    ]  # fmt: skip
    for _ in range(15):
        eos_step = random.choice((None, 1, 2, 4, 9))
        cases.append((random.randint(1, 9), random.randint(0, 9), eos_step))
    total = 0
    for P, N, eos_step in sorted(cases, key=lambda c: (c[1] == 0, c[0] + c[1], c[2] or 0)):
        case = f"P {P}, N {N}, end token at step {eos_step}"
        target = _count(model, P, N, eos_step)
        yours = attempt(case, number_from, answer, P, N, eos_step)
        if yours != target:
            raise Failure(case, f"{target} counted", yours, _why_count(P, N, eos_step, yours))
        total += target
    return Evidence(
        True,
        f"passed: your numbers equal the counter for {len(cases)} runs of the project's loop\n"
        f"  cost of counting instead: {total} forwards",
    )


def _count(model: GPT, P: int, N: int, eos_step: int | None) -> int:
    with counting(model) as counts:
        for step in generate(
            model, random_ids(P, model), N, greedy,
            lambda token: "eos" if counts.forwards == eos_step else None,
        ):  # fmt: skip
            reason = step.finish_reason
    assert N == 0 or reason in ("eos", "max_new_tokens")
    return counts.forwards


def _why_count(P: int, N: int, eos_step: int | None, yours: object) -> str:
    if N == 0:
        return "nothing is asked for, so nothing is run"
    if eos_step is not None and eos_step <= N:
        if yours == eos_step - 1:
            return "the end token is chosen from logits, too: it costs a forward"
        return f"the loop ends at token {eos_step}, whatever was allowed"
    if eos_step is not None and yours == eos_step:
        return f"the loop never gets to step {eos_step}: it may make {N} tokens"
    if yours == N - 1:
        return "the first new token takes a forward, too: there are no logits before it"
    return "a forward reads all of the prompt at once, and makes one new token"
