"""Checkers of lesson 03: temperature, and what it does to the ratio of two probabilities."""

from collections.abc import Callable
from random import Random

import torch
import torch.nn.functional as F

from notebooks.checks.evidence import Evidence, Failure, attempt, tensor_from
from stages.stage2_sampling import apply_temperature


def check_temperature(answer: Callable[[torch.Tensor, float], torch.Tensor]) -> Evidence:
    """Compare probabilities with the project's, for shapes, temperatures and ties."""
    random, divided = Random(3), 0
    cases = [(1, 2, 1.0, 1), (1, 2, 0.5, 1), (1, 3, 0.0, 1), (2, 2, 0.5, 1)]
    cases += [(1, 4, 0.5, 1000), (2, 4, 1e-310, 1), (2, 5, 0.0, 1)]
    for _ in range(13):
        T = random.choice((0.0, 0.25, 0.5, 2.0, 4.0))
        cases.append((random.randint(1, 6), random.randint(2, 9), T, random.choice((1, 30))))
    for B, V, T, size in sorted(cases, key=lambda case: (case[3], case[0] * case[1], case)):
        logits = random_logits(B, V, size, seed=B + V)
        if T == 0:
            logits[:, -1] = logits[:, :-1].amax(dim=-1)  # a tie
        case = f"logits {rounded(logits[0])}" if B == 1 else f"random logits ({B}, {V})"
        case += f", temperature {T}"
        target, given = probabilities(logits, T), logits.clone()
        yours = attempt(case, tensor_from, answer, given, T).double()
        if yours.shape != target.shape:
            shapes = f"shape {tuple(target.shape)}", f"shape {tuple(yours.shape)}"
            raise Failure(case, *shapes, "a probability for each token of each row")
        wrong = ((yours - target).abs().nan_to_num(nan=1.0) > 1e-6).any(dim=-1).nonzero()
        if len(wrong):
            row = wrong[0].item()
            why = _why_temperature(logits, T, yours, row)
            where = f"{case}, row {row}"
            raise Failure(where, rounded(target[row]), rounded(yours[row]), why)
        if not given.equal(logits):
            why = "your function wrote into its input: whoever uses these logits next is misled"
            raise Failure(case, f"logits stay {rounded(logits[0])}", rounded(given[0]), why)
        divided += logits.numel()
    return Evidence(
        True,
        f"passed: the project's probabilities in {len(cases)} cases, and no input was touched\n"
        f"  cost: {divided} logits divided, 0 draws, 0 forwards",
    )


def probabilities(logits: torch.Tensor, T: float) -> torch.Tensor:
    """What temperature T makes of logits, (B, V) -> (B, V)."""
    if T == 0:
        return F.one_hot(logits.argmax(dim=-1), logits.shape[-1]).to(logits.dtype)
    return apply_temperature(logits, T).softmax(dim=-1)


def random_logits(B: int, V: int, size: float, seed: int) -> torch.Tensor:
    """Random logits (B, V), float64, of about that size."""
    generator = torch.Generator().manual_seed(seed)
    return size * torch.randn(B, V, dtype=torch.float64, generator=generator).round(decimals=1)


def rounded(row: torch.Tensor) -> str:
    """A row of numbers, to be read."""
    return "[" + ", ".join(f"{x:.3g}" for x in row.tolist()) + "]"


def _why_temperature(logits: torch.Tensor, T: float, yours: torch.Tensor, row: int) -> str:
    if yours[row].isnan().any():
        if T == 0:
            return "NaN: temperature 0 can't divide, it means argmax"
        return "NaN: a number overflowed; subtract the row's maximum before you divide"
    if T == 0:
        if (yours[row] > 0).sum() > 1:
            return "on a tie, temperature 0 takes the token of lowest id alone, with probability 1"
        return "temperature 0 is argmax: the likeliest token, on a tie the lowest id, has 1"
    if torch.allclose(yours, (logits * T).softmax(dim=-1)):
        return "yours is upside down: a low temperature sharpens"
    if torch.allclose(yours, logits.softmax(dim=-1)):
        return "the temperature has no effect: divide the logits, not the probabilities"
    if logits.shape[0] == logits.shape[1]:
        return (
            "one row alone was right, so rows mix. Here B equals V: a missing keepdim "
            "broadcasts along the wrong dimension, without an error"
        )
    return "ratios of probabilities go to the power 1 / temperature"


def check_ratio_at(answer: Callable[[float, float, float], float]) -> Evidence:
    """Compare with the ratio after `apply_temperature` on whole distributions."""
    random = Random(3)
    cases = [([0.6, 0.3, 0.1], T) for T in (1.0, 0.5, 2.0)]
    for _ in range(17):
        weights = [random.random() + 0.01 for _ in range(random.randint(2, 8))]
        cases.append(([w / sum(weights) for w in weights], random.choice((0.25, 0.5, 2.0, 3.0))))
    for probs, T in cases:
        p1, p2 = probs[:2]
        after = probabilities(torch.tensor([probs], dtype=torch.float64).log(), T)[0]
        target = (after[0] / after[1]).item()
        case = f"p1 {p1:.3g}, p2 {p2:.3g}, temperature {T}"
        yours = attempt(case, lambda *numbers: float(answer(*numbers)), p1, p2, T)
        if not abs(yours - target) <= 1e-9 * target:
            raise Failure(case, f"{target:.4f}", f"{yours:.4f}", _why_ratio(p1, p2, T, yours))
    return Evidence(
        True,
        f"passed: the ratio after a real softmax, in {len(cases)} cases\n"
        "  cost: one power; what the other tokens have doesn't matter, so no softmax",
    )


def _why_ratio(p1: float, p2: float, T: float, yours: float) -> str:
    if abs(yours - p1 / p2) < 1e-9:
        return "that is the ratio at temperature 1"
    if abs(yours - (p1 / p2) ** T) < 1e-9:
        return "upside down: at a low temperature the likelier one must gain"
    return "a difference of logits is the logarithm of a ratio; temperature divides the difference"
