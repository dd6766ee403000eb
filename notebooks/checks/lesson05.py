"""Checkers of lesson 05: a draw that is a function of u, and numbers that can be replayed."""

import math
from collections.abc import Callable
from itertools import accumulate
from random import Random

import torch

from notebooks.checks import museum
from notebooks.checks.evidence import Evidence, Failure, attempt, judge_test, tensor_from
from stages.stage2_sampling import Choose, Sampler, pick

BELOW_1 = math.nextafter(1, 0)  # the largest u there is


def check_token_at(answer: Callable[[torch.Tensor, float], int]) -> Evidence:
    """Walk up the ladder of each distribution in even steps, and try the edges of its shares."""
    random, draws = Random(5), 0
    even = torch.tensor([0.5, 0.5], dtype=torch.float64)
    _check_repeatable(answer, even, 0.25)
    cases = [[16], [8, 8], [2, 6, 8], [0, 16], [8, 0, 8], [4, 0, 12], [8, 4, 4, 0]]
    for V in sorted(random.randint(2, 9) for _ in range(13)):
        cases.append([0] * V)
        for _ in range(16):
            cases[-1][random.randrange(V)] += 1
    for sixteenths in cases:
        ends = list(accumulate(sixteenths))
        edges = [i / 16 for i in range(16)]
        for u in (*(edge + 1 / 32 for edge in edges), *edges, BELOW_1):
            target = next(i for i, end in enumerate(ends) if end > 16 * u)
            _check_draw(answer, torch.tensor(sixteenths, dtype=torch.float64) / 16, u, target)
            draws += 1
    for dropped in (0, 1):  # rounding leaves the sum below 1
        probs = torch.tensor([0.1] * 10 + [0.0] * dropped, dtype=torch.float64)
        _check_draw(answer, probs, BELOW_1, 9)
    return Evidence(
        True,
        f"passed: {len(cases)} distributions, every token as often as its probability says\n"
        f"  cost: {draws + 2} tokens from as many numbers u, and none of your own",
    )


def _check_repeatable(
    answer: Callable[[torch.Tensor, float], int], probs: torch.Tensor, u: float
) -> None:
    case = f"probs {_listed(probs)}, u = {u}, twenty times"
    ids = {attempt(case, lambda: int(answer(probs, u))) for _ in range(20)}
    if len(ids) > 1:
        why = "u alone decides: no other random number is drawn"
        raise Failure(case, "the same id each time", f"ids {sorted(ids)}", why)


def _check_draw(
    answer: Callable[[torch.Tensor, float], int], probs: torch.Tensor, u: float, target: int
) -> None:
    case = f"probs {_listed(probs)}, u = {u:.16g}"
    given = probs.clone()
    yours = attempt(case, lambda: int(answer(given, u)))
    if yours != target:
        raise Failure(case, f"id {target}", f"id {yours}", _why_token(probs, u, target, yours))
    if not given.equal(probs):
        raise Failure(case, f"probs stay {_listed(probs)}", _listed(given), "you wrote into them")


def _listed(probs: torch.Tensor) -> str:
    if len(probs) >= 10:
        return f"ten times 0.1{', then 0' if len(probs) > 10 else ''}"
    return "[" + ", ".join(f"{p:.4g}" for p in probs.tolist()) + "]"


def _why_token(probs: torch.Tensor, u: float, target: int, yours: int) -> str:
    ranked, order = probs.sort(descending=True, stable=True)
    rank = pick(ranked.log()[None], u).item()
    if not 0 <= yours < len(probs):
        return (
            f"there is no such id: the ids are 0 to {len(probs) - 1}, the sum of the "
            "probabilities may be a little less than 1 by rounding, and u lies above it"
        )
    if probs[yours] == 0:
        return (
            f"id {yours} has probability 0, so no u may give it: "
            f"take the first share that ends beyond u, which is that of id {target}"
        )
    if probs.cumsum(dim=0)[yours] == u:
        return f"u is on the edge: it belongs to the share that begins there, id {target}'s"
    if yours == rank:
        return f"that is a rank: place {rank} in the sorted list is held by id {order[rank].item()}"
    if yours == order[rank]:
        return "your ladder is sorted: stack the shares in the order of their ids"
    if yours == probs.argmax():
        return "that is the likeliest token: u has no effect"
    return f"shares end at {_listed(probs.cumsum(dim=0))}, and u alone decides in which it falls"


def check_replays(answer: Callable[[Callable[[int], Choose]], bool]) -> Evidence:
    """Hand the learner's test the project's sampler, then each broken one."""
    draws = [0]

    def counted(make_choose: Callable[[int], Choose]) -> Callable[[int], Choose]:
        def make(seed: int) -> Choose:
            rule = make_choose(seed)

            def choose(logits: torch.Tensor) -> torch.Tensor:
                draws[0] += 1
                return rule(logits)

            return choose

        return make

    for make_choose in (_project, *museum.BROKEN_SAMPLERS):
        right = make_choose is _project
        case = "the project's Sampler" if right else make_choose.__name__
        why = f"your test misses {case}: {make_choose.__doc__}"
        if right:
            why = "your test rejects a right one: can its logits give more than one token?"
        judge_test(case, right, why, answer, counted(make_choose))
    return Evidence(
        True,
        "passed: your test accepts the project's sampler and finds "
        f"{len(museum.BROKEN_SAMPLERS)} broken ones\n  cost: {draws[0]} draws",
    )


def _project(seed: int) -> Choose:
    return Sampler(seed=seed)


def check_choose_for(answer: Callable[[list[int]], Choose]) -> Evidence:
    """Run requests alone, first, last and shuffled; compare each with the same request alone."""
    random = Random(5)
    batches = [[7], [7, 8], [8, 7], [7, 8, 9], [8, 9, 7], [9, 7, 8], [7, 7]]
    for _ in range(8):
        batches.append(random.sample(range(100), random.randint(2, 6)))
    tokens = 0
    for seeds in sorted(batches, key=len):
        choose = attempt(f"requests with seeds {seeds}", answer, seeds)
        texts: list[list[int]] = [[] for _ in seeds]
        for turn in range(1, 6):
            logits = torch.cat(
                [_logits_after([seed, *text]) for seed, text in zip(seeds, texts, strict=True)]
            )
            case = f"requests with seeds {seeds}, turn {turn}"
            yours = attempt(case, tensor_from, choose, logits)
            if yours.shape != (len(seeds), 1):
                shapes = f"shape {(len(seeds), 1)}", f"shape {tuple(yours.shape)}"
                raise Failure(case, *shapes, "one column of tokens, a row for each request")
            for row, seed in enumerate(seeds):
                u = _number(seed, turn)
                target, token = pick(logits[row : row + 1], u).item(), yours[row].item()
                if token != target:
                    where = f"{case}, row {row}"
                    why = _why_row(seeds, turn, row, logits[row : row + 1], yours)
                    raise Failure(where, f"{target}, as alone", token, why)
                texts[row].append(token)
        tokens += 5 * len(seeds)
    return Evidence(
        True,
        f"passed: each request has its own tokens in {len(batches)} batches, in any company\n"
        f"  cost: {tokens} tokens, {tokens} draws",
    )


def _logits_after(text: list[int]) -> torch.Tensor:
    """A model of its own for each seed: logits (1, 1000) that depend on all tokens so far."""
    generator = torch.Generator().manual_seed(Random(str(text)).getrandbits(40))
    return torch.randn(1, 1000, dtype=torch.float64, generator=generator)


def _number(seed: int, turn: int) -> float:
    """A generator's number at a turn, counted from 1."""
    numbers = Random(seed)
    return [numbers.random() for _ in range(turn)][-1]


def _why_row(
    seeds: list[int], turn: int, row: int, logits: torch.Tensor, yours: torch.Tensor
) -> str:
    seed, B = seeds[row], len(seeds)
    known = {
        "the first number again: make the generator once, before the turns": _number(seed, 1),
        f"seeded with its row, {row}: the seed belongs to the request": _number(row, turn),
        "the number of row 0 in every row": _number(seeds[0], turn),
        "from a generator that all rows share: neighbours shift its numbers": _number(
            seeds[0], (turn - 1) * B + row + 1
        ),
    }
    if row and yours[row].item() == yours[0].item():
        return "row 0's token in every row"
    for mistake, u in known.items():
        if pick(logits, u).item() == yours[row].item():
            return mistake
    return f"request {seed} draws the numbers of Random({seed}), one a turn, wherever it stands"
