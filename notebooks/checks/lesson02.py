"""Checkers of lesson 02: what each row of logits is about, and which one the loop needs."""

from collections.abc import Callable
from functools import partial
from random import Random

import torch

import generate
from model import GPT
from notebooks.checks import museum
from notebooks.checks.evidence import Evidence, Failure, attempt, judge_test, tensor_from
from notebooks.checks.models import random_model
from stages import stage1_last_logits
from support.counting import Counts, counting

Loop = Callable[[GPT, torch.Tensor, int], torch.Tensor]


def random_rows(B: int, T: int, model: GPT) -> torch.Tensor:
    """Random texts, ids (B, T)."""
    generator = torch.Generator().manual_seed(10 * B + T)
    return torch.randint(model.config.vocab_size, (B, T), generator=generator)


def random_shapes() -> list[tuple[int, int]]:
    """Small cases and some random ones, (B, T), smallest first."""
    random = Random(2)
    shapes = [(1, 1), (1, 2), (2, 2), (1, 5), (3, 4)]
    shapes += [(random.randint(1, 4), random.randint(1, 12)) for _ in range(10)]
    return sorted(shapes, key=lambda shape: (shape[0] * shape[1], shape))


@torch.no_grad()
def check_sentence_probabilities(
    answer: Callable[[GPT, torch.Tensor], torch.Tensor],
) -> Evidence:
    """Compare with one forward for each prefix; count the forwards."""
    model, prefixes = random_model(block_size=16), 0
    for B, T in random_shapes():
        case, ids = f"ids of shape ({B}, {T})", random_rows(B, T, model)
        columns = [
            model(ids[:, :t])[:, -1].softmax(dim=-1).gather(-1, ids[:, t, None])
            for t in range(1, T)
        ]
        target = torch.cat(columns, dim=1) if columns else torch.zeros(B, 0)
        yours, counts = _counted(case, answer, model, ids)
        if yours.shape != target.shape:
            shapes = f"shape {tuple(target.shape)}", f"shape {tuple(yours.shape)}"
            raise Failure(case, *shapes, "the first token was predicted by no row")
        wrong = ((yours - target).abs().nan_to_num(nan=1.0) > 1e-6).nonzero()
        if len(wrong):
            row, t = wrong[0].tolist()
            values = f"{target[row, t]:.4f}", f"{yours[row, t]:.4f}"
            why = _why_probability(model(ids), ids, yours)
            raise Failure(f"{case}, text {row}, token {t + 1}", *values, why)
        if T > 1 and counts.forwards != 1:
            why = "right, but each row of one forward is already the last row of a prefix"
            raise Failure(case, "1 forward", f"{counts.forwards} forwards", why)
        prefixes += T - 1
    return Evidence(
        True,
        f"passed: equal to one forward for each prefix, in {len(random_shapes())} cases\n"
        f"  cost: 1 forward a case, {prefixes} with one for each prefix",
    )


def _counted(
    case: str, answer: Callable[[GPT, torch.Tensor], torch.Tensor], model: GPT, ids: torch.Tensor
) -> tuple[torch.Tensor, Counts]:
    with counting(model) as counts:
        yours = attempt(case, tensor_from, answer, model, ids).double()
    return yours, counts


def _why_probability(logits: torch.Tensor, ids: torch.Tensor, yours: torch.Tensor) -> str:
    later, next_ids = ids[:, 1:, None], logits[:, :-1]
    known = {
        "row t asked about token t: it has read that token already, it predicts the next one": (
            logits[:, 1:].softmax(dim=-1).gather(-1, later)
        ),
        "these are logarithms": next_ids.log_softmax(dim=-1).gather(-1, later),
        "these are logits: they don't sum to 1": next_ids.gather(-1, later),
        "softmax along the text: the tokens of one row have to sum to 1, dim=-1": (
            logits.softmax(dim=1)[:, :-1].gather(-1, later)
        ),
    }
    for mistake, values in known.items():
        if torch.allclose(yours, values[..., 0]):
            return mistake
    return "the probability that row t gives to token t + 1"


@torch.no_grad()
def check_reads_last_row(answer: Callable[[GPT, Loop], bool]) -> Evidence:
    """Hand the learner's test the loops of stages 0 and 1, then each broken one."""
    model = random_model(block_size=24)
    right_loops = {"stage 0": generate.generate, "stage 1": stage1_last_logits.generate}
    broken_loops = {loop.__name__: loop for loop in museum.BROKEN_LOOPS}
    with counting(model) as counts:
        for name, loop in (right_loops | broken_loops).items():
            right = name in right_loops
            case = f"the loop of {name}" if right else f"the broken loop {name}"
            why = f"your test misses {name}: {loop.__doc__}"
            if right:
                why = "your test rejects a right loop"
            judge_test(case, right, why, partial(answer, model), loop)
    return Evidence(
        True,
        f"passed: your test accepts {len(right_loops)} right loops and finds "
        f"{len(broken_loops)} broken ones\n"
        f"  cost: {counts.forwards} forwards, {counts.positions} token-positions",
    )


@torch.no_grad()
def check_logits_of_last_row(answer: Callable[[GPT, torch.Tensor], torch.Tensor]) -> Evidence:
    """Compare with the last row of all logits; count forwards and rows of the head."""
    model, all_rows, your_rows = random_model(block_size=16), 0, 0
    for B, T in random_shapes():
        case, ids = f"ids of shape ({B}, {T})", random_rows(B, T, model)
        logits = model(ids)
        target = logits[:, -1]
        yours, counts = _counted(case, answer, model, ids)
        if yours.shape != target.shape:
            shapes = f"shape {tuple(target.shape)}", f"shape {tuple(yours.shape)}"
            raise Failure(case, *shapes, "one row of logits for each text, (B, V)")
        wrong = ((yours - target).abs().nan_to_num(nan=1.0).amax(dim=-1) > 1e-6).nonzero()
        if len(wrong):
            row = wrong[0].item()
            why = _recognised_row(logits, yours[row], row)
            raise Failure(f"{case}, text {row}", _begin(target[row]), _begin(yours[row]), why)
        if counts.forwards != 1 or counts.head_rows != B:
            work = f"{counts.forwards} forwards, {counts.head_rows} rows of logits"
            why = "the values are right: hand the head the last position alone"
            raise Failure(case, f"1 forward, {B} rows of logits", work, why)
        all_rows, your_rows = all_rows + B * T, your_rows + counts.head_rows
    return Evidence(
        True,
        f"passed: the last rows, in {len(random_shapes())} cases\n"
        f"  cost: {your_rows} rows of logits, {all_rows} for every position",
    )


def _recognised_row(logits: torch.Tensor, yours: torch.Tensor, text: int) -> str:
    """Which row of which text this is, if it is one."""
    for b, rows in enumerate(logits):
        for t, row in enumerate(rows):
            if torch.allclose(row, yours):
                return f"yours is row {t} of text {b}; the last of text {text} is {len(rows) - 1}"
    return "yours is no row of the model's"


def _begin(row: torch.Tensor) -> str:
    return " ".join(f"{x:.3f}" for x in row[:4]) + " ..."
