"""Checkers of lesson 08: a cache, attention over it, and the test that finds broken ones."""

from collections.abc import Callable
from functools import partial
from random import Random

import torch

from model import GPT, Cache
from notebooks.checks import museum
from notebooks.checks.evidence import Evidence, Failure, attempt, judge_test, tensor_from
from notebooks.checks.models import random_ids, random_model
from stages.stage4_kv_cache import KVCache
from support.counting import counting

MakeCache = Callable[[GPT, int], Cache]


@torch.no_grad()
def check_learners_cache(answer: MakeCache) -> Evidence:
    """Use caches as loops do, piece by piece, and compare all that they return."""
    model, random = random_model(block_size=16), Random(8)
    cases = [[1], [2], [1, 1], [2, 1], [1, 2], [3, 2, 1]]
    for _ in range(10):
        cases.append([random.randint(1, 4) for _ in range(random.randint(2, 4))])
    for chunks in sorted(cases, key=lambda case: (sum(case), len(case))):
        case = f"forwards of {chunks} tokens"
        cache = _new_cache(answer, case, model)
        _use(cache, chunks, case, model)
        _compare_with_whole(answer, chunks, case, model)
    cost = KVCache(model, sum(chunks)).memory.nbytes
    text = f"passed: {len(cases)} ways to feed a text, each equal to one forward without a cache"
    return Evidence(True, f"{text}\n  cost: {cost:,} bytes hold {sum(chunks)} positions")


def _new_cache(answer: MakeCache, case: str, model: GPT) -> Cache:
    cache = attempt(f"{case}, a new cache", answer, model, model.config.block_size)
    begin = attempt(f"{case}, a new cache, positions(1)", _positions, cache, 1)
    if begin != [0]:
        why = "it is made new and remembers the prompt before it"
        raise Failure(f"{case}, a new cache, positions(1)", [0], begin, why)
    return cache


def _use(cache: Cache, chunks: list[int], case: str, model: GPT) -> None:
    """Call the cache as `GPT.hidden` does, with random keys and values."""
    config = model.config
    D, generator = config.n_embd // config.n_head, torch.Generator().manual_seed(8)
    total = sum(chunks)
    keys, values = torch.rand(
        2, config.n_layer, 1, config.n_head, total, D, dtype=torch.float64, generator=generator
    )
    past = 0
    for step, T in enumerate(chunks):
        end, where = past + T, f"{case}, forward {step}"
        positions = attempt(f"{where}, positions({T})", _positions, cache, T)
        if positions != list(range(past, end)):
            why = "positions restart: they should go on behind the tokens already in the cache"
            raise Failure(f"{where}, positions({T})", list(range(past, end)), positions, why)
        _check_mask(attempt(f"{where}, mask({T})", cache.mask, T), past, T, where)
        for layer in range(config.n_layer):
            call = f"{where}, append(layer {layer})"
            new = keys[layer, :, :, past:end], values[layer, :, :, past:end]
            pair = attempt(call, _two_from, cache, layer, *new)
            for name, yours, all_of in zip(("keys", "values"), pair, (keys, values), strict=True):
                _check_kept(call, name, yours, all_of[layer, :, :, :end], past, layer)
        attempt(f"{where}, advance({T})", cache.advance, T)
        past = end


def _positions(cache: Cache, T: int) -> list[int]:
    return tensor_from(cache.positions, T).tolist()


def _two_from(
    cache: Cache, layer: int, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = cache.append(layer, k, v)
    return keys, values


def _check_mask(mask: torch.Tensor | None, past: int, T: int, where: str) -> None:
    if mask is None and T == 1:  # a single query sees every key
        return
    target = torch.ones(T, past + T, dtype=torch.bool).tril(diagonal=past)
    if mask is None or mask.shape != target.shape or not mask.bool().equal(target):
        why = f"query {past} is the first new one and sees keys 0 to {past}, {past + 1} of them"
        if mask is not None and mask.shape == target.shape and mask.equal(target.tril()):
            why = f"yours is aligned to the top left, as if nothing came before: {why}"
        yours = "None" if mask is None else _drawn(mask)
        raise Failure(f"{where}, mask({T})", _drawn(target), yours, why)


def _drawn(mask: torch.Tensor) -> str:
    return " / ".join("".join(str(int(sees)) for sees in row) for row in mask)


def _check_kept(
    call: str, name: str, yours: torch.Tensor, target: torch.Tensor, past: int, layer: int
) -> None:
    if yours.shape != target.shape:
        why = f"{name}: all so far, {past} old ones and the new ones"
        if layer > 0:
            why += "; layer 0 was right, so did the length move before advance?"
        elif yours.shape[2] < target.shape[2]:
            why += ": the old ones were not stored or not returned"
        raise Failure(call, f"shape {tuple(target.shape)}", f"shape {tuple(yours.shape)}", why)
    differs = (yours != target).any(dim=-1).any(dim=1)[0].nonzero()
    if len(differs):
        position = differs[0].item()
        shown = [f"{name[:-1]} of position {position} begins {x[0, 0, position, 0]:.3f}"
                 for x in (target, yours)]  # fmt: skip
        why = "never stored, or overwritten" if position < past else "it is new, and not there"
        raise Failure(call, *shown, f"{name} of position {position}: {why}")


def _compare_with_whole(answer: MakeCache, chunks: list[int], case: str, model: GPT) -> None:
    ids = random_ids(sum(chunks), model, seed=sum(chunks))
    target, past = model.hidden(ids), 0
    cache = _new_cache(answer, case, model)
    for chunk in ids.split(chunks, dim=1):
        hidden = attempt(case, model.hidden, chunk, cache)
        error = (hidden - target[:, past : past + chunk.shape[1]]).abs().max()
        if error > 1e-9:
            where = f"{case}, the one after {past} cached tokens"
            raise Failure(
                where, "the hidden state of one forward over all", f"{error:.2g} away from it",
                "in float64 the two agree to about 1e-14",
            )  # fmt: skip
        past += chunk.shape[1]


@torch.no_grad()
def check_cached_attention(answer: Callable[..., torch.Tensor]) -> Evidence:
    """Compare with the last rows of attention over the whole text, float64."""
    random = Random(8)
    cases = [(1, 1), (0, 2), (1, 2), (3, 1)]
    cases += [(random.randint(0, 12), random.randint(1, 5)) for _ in range(16)]
    whole_scores = kept_scores = 0
    for past, T in sorted(cases, key=lambda case: (sum(case), case)):
        case = f"{T} new tokens after {past}"
        generator = torch.Generator().manual_seed(past)
        shape = (3, 2, past + T, 4)
        q, k, v = torch.randn(shape, dtype=torch.float64, generator=generator)
        target = _attention(q, k, v, "bottom right")[:, past:]
        inputs = q[:, past:], k[:, past:], v[:, past:], k[:, :past], v[:, :past]
        yours = attempt(case, tensor_from, answer, *inputs)
        if yours.shape != target.shape:
            raise Failure(
                case, f"shape {tuple(target.shape)}", f"shape {tuple(yours.shape)}",
                "one row of output for each new query",
            )  # fmt: skip
        errors = (yours - target).abs().amax(dim=(0, 2))
        wrong = (errors.nan_to_num(nan=1.0) > 1e-9).nonzero()
        if len(wrong):
            row = wrong[0].item()
            why = f"query {row} is at position {past + row} and sees keys 0 to {past + row}"
            raise Failure(
                f"{case}, query {row}", _begin(target, row), _begin(yours, row),
                why + _recognised(yours, inputs),
            )  # fmt: skip
        whole_scores += (past + T) ** 2
        kept_scores += T * (past + T)
    return Evidence(
        True,
        f"passed: equal to attention over the whole text in {len(cases)} cases, float64\n"
        f"  cost: {kept_scores:,} scores a head, {whole_scores:,} without kept keys",
    )


def _begin(output: torch.Tensor, row: int) -> str:
    return " ".join(f"{x:.3f}" for x in output[0, row]) + "  (head 0)"


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: str) -> torch.Tensor:
    scores = q @ k.transpose(1, 2) / q.shape[2] ** 0.5
    T, S = scores.shape[1:]
    if mask != "none":
        sees = torch.ones(T, S, dtype=torch.bool)
        sees = sees.tril(diagonal=S - T if mask == "bottom right" else 0)
        scores = scores.masked_fill(~sees, -torch.inf)
    return scores.softmax(dim=-1) @ v


def _recognised(yours: torch.Tensor, inputs: tuple[torch.Tensor, ...]) -> str:
    """What mistake gives exactly this output, if it is a known one."""
    q, k, v, old_k, old_v = inputs
    keys, values = torch.cat((old_k, k), dim=1), torch.cat((old_v, v), dim=1)
    swapped_keys, swapped_values = torch.cat((k, old_k), dim=1), torch.cat((v, old_v), dim=1)
    known = {
        "a mask aligned to the top left": _attention(q, keys, values, "top left"),
        "no mask: queries see the new keys after them": _attention(q, keys, values, "none"),
        "the new keys alone, the old ones forgotten": _attention(q, k, v, "bottom right"),
        "new keys put before the old ones": _attention(
            q, swapped_keys, swapped_values, "bottom right"
        ),
        "scores not divided by sqrt(D)": _attention(
            q * q.shape[2] ** 0.5, keys, values, "bottom right"
        ),
    }
    for mistake, output in known.items():
        if torch.allclose(yours, output):
            return f"\n  yours is what this gives: {mistake}"
    return ""


@torch.no_grad()
def check_cache_is_right(answer: Callable[[GPT, MakeCache], bool]) -> Evidence:
    """Hand the learner's test a right cache, then each broken one."""
    model = random_model(block_size=24)
    with counting(model) as counts:
        for make_cache in (KVCache, *museum.BROKEN_CACHES):
            right = make_cache is KVCache
            case = "a right cache" if right else make_cache.__name__
            why = f"your test misses {case}: {make_cache.__doc__}"
            if right:
                why = (
                    "your test rejects a right cache: does it ask for equal bits? sums are rounded"
                )
            judge_test(case, right, why, partial(answer, model), make_cache)
    return Evidence(
        True,
        f"passed: your test accepts a right cache and finds {len(museum.BROKEN_CACHES)} broken ones"
        f"\n  cost: {counts.forwards} forwards, {counts.positions} token-positions",
    )
