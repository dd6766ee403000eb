"""Checkers of lesson 04: which tokens a filter keeps, and when the order of filters matters."""

from collections.abc import Callable
from random import Random

import torch

from notebooks.checks.evidence import Evidence, Failure, attempt, tensor_from
from stages.stage2_sampling import apply_temperature, apply_top_k, apply_top_p

Filter = Callable[[torch.Tensor, float], torch.Tensor]
Example = tuple[list[float], float, float]


def check_keep_top_k(answer: Filter) -> Evidence:
    """Compare kept ids and logits with the project's filter, ties and large k included."""
    random = Random(4)
    cases = [([[1.0, 0.0]], 2), ([[1.0, 2.0]], 5), ([[-5.0, -4.0, -3.0]], 1)]
    cases += [([[1.0, 3.0, 2.0, 3.0]], 1), ([[0.0] * 4], 2)]
    for B, V in _random_shapes(random):
        rows = [[random.randint(-6, 4) / 2 for _ in range(V)] for _ in range(B)]
        cases.append((rows, random.randint(1, V + 2)))
    for rows, k in cases:
        _compare(answer, apply_top_k, torch.tensor(rows, dtype=torch.float64), k, "k", _why_top_k)
    return _passed("exactly k, ties included", cases)


def check_keep_top_p(answer: Filter) -> Evidence:
    """Compare kept ids and logits with the project's filter, for p between the sums."""
    random = Random(4)
    cases = [([[8, 4, 2, 2]], 0.6), ([[2, 4, 8, 2]], 0.6), ([[2, 14]], 0.5), ([[4, 4, 4, 4]], 0.6)]
    cases += [([[2, 8, 4, 2], [8, 2, 2, 4]], 0.6)]
    for B, V in _random_shapes(random):
        rows = [[1] * V for _ in range(B)]
        for row in rows:
            for _ in range(16 - V):
                row[random.randrange(V)] += 1
        cases.append((rows, (2 * random.randint(0, 15) + 1) / 32))
    for sixteenths, p in cases:
        logits = (torch.tensor(sixteenths, dtype=torch.float64) / 16).log()
        _compare(answer, apply_top_p, logits, p, "p", _why_top_p)
    return _passed("the smallest set that reaches p", cases)


def _random_shapes(random: Random) -> list[tuple[int, int]]:
    """Fifteen of them, (B, V), smallest first."""
    shapes = [(random.randint(1, 4), random.randint(2, 8)) for _ in range(15)]
    return sorted(shapes, key=lambda shape: (shape[0] * shape[1], shape))


def _passed(what: str, cases: list[tuple[list[list[float]], float]]) -> Evidence:
    rows = sum(len(rows) for rows, _ in cases)
    sizes = sum(len(row) for rows, _ in cases for row in rows)
    return Evidence(
        True,
        f"passed: {what}, in {len(cases)} cases of {rows} rows; no input was touched\n"
        f"  cost: {sizes} logits put in order, 0 draws, 0 forwards",
    )


def _compare(
    answer: Filter,
    project: Filter,
    logits: torch.Tensor,
    setting: float,
    name: str,
    why: Callable[[torch.Tensor, float, int, set[int]], str],
) -> None:
    """Kept ids first, row by row, then the logits themselves, then the input."""
    target, given = project(logits, setting), logits.clone()
    shown = f"logits {_listed(logits)}" if name == "k" else f"probs {_listed(logits.softmax(-1))}"
    case = f"{shown}, {name} = {setting}"
    yours = attempt(case, tensor_from, answer, given, setting)
    if yours.shape != logits.shape:
        shapes = f"shape {tuple(logits.shape)}", f"shape {tuple(yours.shape)}"
        raise Failure(case, *shapes, "a logit for each token, minus infinity for a dropped one")
    for row in range(len(logits)):
        dropped = target[row].isneginf()
        kept, your_kept = _kept(target[row]), _kept(yours[row])
        masked = dropped & (yours[row] != logits[row]) & ~yours[row].isneginf()
        if masked.any():
            share = yours[row].softmax(dim=-1)[dropped].sum().item()
            text = "the dropped have probability 0", f"together they have {share:.3f}"
            raise Failure(f"{case}, row {row}", *text, "mask with minus infinity")
        if your_kept != kept:
            reason = why(logits, setting, row, your_kept)
            ids = f"keeps ids {sorted(kept)}", f"keeps ids {sorted(your_kept)}"
            raise Failure(f"{case}, row {row}", *ids, reason)
    if not torch.allclose(yours.double(), target):
        reason = "return logits: what is kept keeps its value"
        raise Failure(case, _listed(target), _listed(yours), reason)
    if not given.equal(logits):
        reason = "your function wrote into its input: whoever uses these logits next is misled"
        raise Failure(case, f"they stay {_listed(logits)}", _listed(given), reason)


def _listed(rows: torch.Tensor) -> str:
    return ", ".join("[" + ", ".join(f"{x:.4g}" for x in row) + "]" for row in rows.tolist())


def _kept(row: torch.Tensor) -> set[int]:
    return set((~row.isneginf()).nonzero()[:, 0].tolist())


def _why_top_k(logits: torch.Tensor, k: int, row: int, yours: set[int]) -> str:
    values = logits[row]
    bar = values.sort(descending=True).values[min(k, len(values)) - 1]
    if len(yours) > k and yours == set((values >= bar).nonzero()[:, 0].tolist()):
        return f"{len(yours)} stay, k is {k}: ties with the last one kept go to the lower id"
    if yours == set(range(k)):
        return "these are the first ids, not the largest logits: ranks were taken for ids"
    if len(yours) == 1:
        return "the bar is the smallest of the kept logits, not the largest"
    return "the k largest, of equal ones those of lower id; a k above V keeps all"


def _why_top_p(logits: torch.Tensor, p: float, row: int, yours: set[int]) -> str:
    probs = logits[row].softmax(dim=-1)
    ranked, order = probs.sort(descending=True, stable=True)
    before, by_id = ranked.cumsum(dim=0) - ranked, probs.cumsum(dim=0) - probs
    need = int((before < p).sum())
    if not yours:
        return "nothing is left, and the softmax of nothing is NaN: the likeliest always stays"
    if yours == set(order[: need - 1].tolist()):
        crossing = order[need - 1].item()
        return f"id {crossing} is the token that crosses {p}, and it belongs to the set"
    if len(yours) == len(probs):
        return "everything stays: is your sum one of logarithms? They are negative"
    if yours == set(range(need)):
        return f"a mask of ranks: places 0 to {need - 1} are held by ids {order[:need].tolist()}"
    if yours == set((by_id < p).nonzero()[:, 0].tolist()):
        return "you sum in the order of the ids: sort, likeliest first"
    if row > 0:
        return "row 0 was right: each row has its own order"
    return f"the smallest set of likeliest tokens whose sum reaches p: {need} of them"


def check_order_matters(answer: Callable[[], list[Example]]) -> Evidence:
    """Run both orders on the examples: one below temperature 1, one above."""
    examples = attempt("your examples", lambda: [_example(*each) for each in answer()])
    found = []
    for probs, T, p in sorted(examples, key=lambda each: each[1]):
        case = f"probs {probs}, temperature {T}, p {p}"
        if abs(sum(probs) - 1) > 1e-6 or min(probs) <= 0:
            raise Failure(case, "probabilities", probs, "each above 0, and they sum to 1")
        logits = torch.tensor([probs], dtype=torch.float64).log()
        first = attempt(case, lambda row, T, p: apply_top_p(apply_temperature(row, T), p),
                        logits, T, p)  # fmt: skip
        last = apply_temperature(apply_top_p(logits, p), T)
        kept, kept_last = sorted(_kept(first[0])), sorted(_kept(last[0]))
        if kept == kept_last:
            orders = "two different sets", f"ids {kept}, the same tokens in both orders"
            raise Failure(case, *orders, _why_same(probs, T))
        found.append(f"  {case}: {kept} with temperature first, {kept_last} with it last")
    sides = {"below 1": [T for _, T, _ in examples if T < 1]}
    sides["above 1"] = [T for _, T, _ in examples if T > 1]
    for side, temperatures in sides.items():
        if not temperatures:
            case = f"temperatures {[T for _, T, _ in examples]}"
            raise Failure(case, f"one is {side}", "none is", "find an example on either side of 1")
    return Evidence(
        True,
        "passed: the order matters\n" + "\n".join(found) + "\n  below 1 temperature first keeps "
        "fewer, above 1 it keeps more\n"
        f"  cost: {2 * len(examples)} temperatures, {2 * len(examples)} filters, 0 draws",
    )


def _example(probs: list[float], T: float, p: float) -> Example:
    return [float(x) for x in probs], float(T), float(p)


def _why_same(probs: list[float], T: float) -> str:
    if T == 1:
        return "temperature 1 changes nothing"
    if max(probs) == min(probs):
        return "equal probabilities stay equal at any temperature"
    return "move p between what the first tokens have before the temperature and after it"
