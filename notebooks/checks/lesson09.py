"""Checkers of lesson 09: chunked prefill, and the cached loop beyond the context's edge."""

from collections.abc import Callable
from random import Random

import torch

from generate import generate
from model import GPT
from notebooks.checks.evidence import (
    Evidence,
    Failure,
    attempt,
    number_from,
    tensor_from,
    text_from,
)
from notebooks.checks.models import random_ids, random_model
from stages import stage4_kv_cache
from stages.stage2_sampling import greedy
from stages.stage4_kv_cache import KVCache
from support.counting import counting


@torch.no_grad()
def check_chunked_prefill(answer: Callable[..., torch.Tensor]) -> Evidence:
    """Last logits, and the first decode step after it, against one forward over all."""
    model, random = random_model(block_size=24), Random(9)
    cases = [[1], [2], [1, 1], [2, 1], [1, 2], [3, 3, 1]]
    for _ in range(12):
        cases.append([random.randint(1, 5) for _ in range(random.randint(1, 4))])
    for chunks in sorted(cases, key=lambda case: (sum(case), len(case))):
        T, case = sum(chunks), f"chunks {chunks}"
        ids = random_ids(T + 1, model, seed=T)
        rows = model(ids)[0]
        cache = KVCache(model, model.config.block_size)
        with counting(model) as counts:
            yours = attempt(case, tensor_from, answer, model, ids[:, :T], list(chunks), cache)
        _same_row(case, rows, T - 1, yours)
        fed = [forward.ids.shape[1] for forward in counts.seen]
        if sum(fed) == T and fed != chunks:
            raise Failure(case, f"forwards of {chunks} tokens", fed, "one forward for each chunk")
        if cache.length != T:
            why = "the chunks have to go into the cache that was handed in, each token once"
            raise Failure(case, f"{T} tokens in the cache", f"{cache.length} tokens", why)
        after = model.head(model.hidden(ids[:, T:], cache)[:, -1])
        _same_row(f"{case}, then one more token", rows, T, after)
        if (counts.positions, counts.head_rows) != (T, 1):
            target = f"{T} token-positions and 1 row of logits"
            got = f"{counts.positions} token-positions and {counts.head_rows} rows of logits"
            raise Failure(case, target, got, "the head is needed once, after the last chunk")
    cost = f"{counts.forwards} forwards, {counts.positions} token-positions, 1 row of logits"
    return Evidence(
        True, f"passed: {len(cases)} chunk lists give one forward's logits\n  {case}: {cost}"
    )


def _same_row(case: str, rows: torch.Tensor, row: int, yours: torch.Tensor) -> None:
    """Compare logits (1, V) with a row of one forward, and say which row they are instead."""
    if yours.shape != rows[row : row + 1].shape:
        raise Failure(
            case, f"shape {(1, rows.shape[1])}", f"shape {tuple(yours.shape)}",
            "logits of the last position only",
        )  # fmt: skip
    errors = (rows - yours).abs().amax(dim=1)
    if errors[row] > 1e-9:
        same = (errors < 1e-9).nonzero()
        why = "a chunk doesn't see the ones before it, or a token is read twice"
        if len(same):
            why = f"yours are the logits of position {same[0].item()}: the rest was not used"
        raise Failure(
            case, f"logits of position {row}", f"up to {errors[row]:.2g} away from them", why
        )


@torch.no_grad()
def check_cached_crop(answer: Callable[[GPT, torch.Tensor, int], torch.Tensor]) -> Evidence:
    """Tokens of the plain loop across the edge, from no more token-positions than needed."""
    W = 8
    model, random = random_model(block_size=W), Random(9)
    cases = [(1, 0), (1, 1), (W, 1), (W, 2), (W - 1, 2), (W + 3, 3), (3, 2 * W)]
    cases += [(random.randint(1, 12), random.randint(1, 16)) for _ in range(8)]
    dear = None
    for P, N in sorted(cases, key=lambda case: (sum(case), case)):
        case = f"block_size {W}, a prompt of {P}, {N} new tokens"
        ids = random_ids(P, model, seed=P + N)
        target = generate(model, ids, N)[0, P:].tolist()
        with counting(model) as counts:
            yours = attempt(case, text_from, answer, model, ids, N)[P:]
        if yours != target:
            pairs = enumerate(zip(target, yours, strict=False))
            step = next((i for i, (a, b) in pairs if a != b), min(len(target), len(yours)))
            beyond = P + step > W
            why = f"new token {step} is the first that differs, " + (
                "beyond the edge: every position has moved, so no kept key or value holds any more"
                if beyond
                else "before the edge: nothing has to be dropped yet"
            )
            raise Failure(case, target, yours, why)
        cost = _counted(model, ids, N)
        if not dear and counts.positions != cost:
            why = "right, but before the edge one position a step is enough, beyond it block_size"
            dear = Failure(case, f"{cost} token-positions", f"{counts.positions}", why)
    if dear:  # wrong tokens are told first, even if a shorter case only costs too much
        raise dear
    cost = f"{counts.forwards} forwards, {counts.positions} token-positions"
    return Evidence(True, f"passed: equal tokens in {len(cases)} cases\n  {case}: {cost}")


def _counted(model: GPT, ids: torch.Tensor, N: int) -> int:
    """Token-positions of the project's cached loop with context="crop"."""
    with counting(model) as counts:
        for _ in stage4_kv_cache.generate(model, ids, N, greedy, lambda token: None, "crop"):
            pass
    return counts.positions


def check_crop_cost(answer: Callable[[int, int, int], int]) -> Evidence:
    """Compare with a counter around the project's cached loop."""
    random = Random(9)
    cases = [(1, 0, 8), (8, 1, 8), (8, 2, 8), (7, 2, 8), (8, 3, 8), (12, 3, 8)]
    for _ in range(24):
        cases.append((random.randint(1, 20), random.randint(0, 20), random.choice((4, 8, 12))))
    models = {W: random_model(block_size=W) for W in (4, 8, 12)}
    for P, N, W in sorted(cases, key=lambda case: (case[0] + case[1], case)):
        case = f"a prompt of {P}, {N} new tokens, block_size {W}"
        target = _counted(models[W], random_ids(P, models[W]), N)
        yours = attempt(case, number_from, answer, P, N, W)
        if yours != target:
            inside = max(0, min(N - 1, W - min(P, W)))
            why = (
                f"a prefill of {min(P, W)}, {inside} decode steps inside the context, "
                f"{max(0, N - 1 - inside)} prefills of {W} beyond its edge"
            )
            raise Failure(case, f"{target} counted", yours, why if N else "no forward is run")
    return Evidence(True, f"passed: your formula equals the counter in {len(cases)} cases")
