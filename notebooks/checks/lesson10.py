"""Checkers of lesson 10: prompts, ends and settings that differ within one batch."""

from collections.abc import Callable
from random import Random

import torch

from model import GPT
from notebooks.checks.evidence import Evidence, Failure, attempt, tensor_from
from notebooks.checks.models import random_ids, random_model
from support.counting import counting


@torch.no_grad()
def check_batched_last_logits(answer: Callable[..., torch.Tensor]) -> Evidence:
    """Compare with each prompt alone, float64, and count the forwards."""
    model, random = random_model(), Random(10)
    cases = [[1], [3], [2, 2], [2, 1], [1, 3], [3, 1, 2]]
    for _ in range(10):
        cases.append([random.randint(1, 12) for _ in range(random.randint(2, 6))])
    fed = pads = 0
    for number, lengths in enumerate(cases):
        case = f"prompts of {', '.join(map(str, lengths))} tokens"
        prompts = [
            random_ids(length, model, seed=100 * number + row)[0].tolist()
            for row, length in enumerate(lengths)
        ]
        given = [list(prompt) for prompt in prompts]
        target = torch.cat([model.head(model.hidden(torch.tensor([p]))[:, -1]) for p in prompts])
        with counting(model) as counts:
            yours = attempt(case, tensor_from, answer, model, given)
        if given != prompts:
            raise Failure(case, "prompts as they were", "other prompts", "you wrote into them")
        if yours.shape != target.shape:
            shapes = f"shape {tuple(target.shape)}", f"shape {tuple(yours.shape)}"
            raise Failure(case, *shapes, "one row of logits for each prompt: (B, V)")
        wrong = ((yours - target).abs().amax(dim=1).nan_to_num(nan=1.0) > 1e-9).nonzero()
        if len(wrong):
            row = wrong[0].item()
            raise Failure(
                f"{case}, row {row}", _begin(target[row]), _begin(yours[row]),
                _why_logits(model, prompts, yours[row], row),
            )  # fmt: skip
        if counts.forwards != 1:
            why = "right, but the prompts are to share one forward: fill the shorter ones up"
            raise Failure(case, "1 forward", f"{counts.forwards} forwards", why)
        fed, pads = fed + counts.positions, pads + counts.positions - sum(lengths)
    return Evidence(
        True,
        f"passed: {len(cases)} batches, each row as if it were alone, float64\n"
        f"  cost: {len(cases)} forwards, {fed} token-positions, of which {pads} are pads",
    )


def _begin(logits: torch.Tensor) -> str:
    return "logits begin " + " ".join(f"{x:.3f}" for x in logits[:4].tolist())


class _From:
    """A cache for one forward that keeps nothing: its positions begin at `start`."""

    def __init__(self, start: int):
        self.start = start

    def positions(self, T: int) -> torch.Tensor:
        return torch.arange(self.start, self.start + T)

    def mask(self, T: int) -> None:
        return None

    def append(
        self, layer: int, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return k, v

    def advance(self, T: int) -> None:
        pass


def _why_logits(model: GPT, prompts: list[list[int]], yours: torch.Tensor, row: int) -> str:
    """What mistake gives exactly these logits, if it is a known one."""
    T = max(map(len, prompts))
    right = torch.tensor([[*ids, *[0] * (T - len(ids))] for ids in prompts])
    left = torch.tensor([[*[0] * (T - len(ids)), *ids] for ids in prompts])
    own, shortest = torch.tensor([prompts[row]]), min(map(len, prompts))
    others = [model.head(model.hidden(torch.tensor([p]))[0, -1]) for p in prompts]
    known = [
        ("pads on the right and [:, -1]: this row was read at a pad",
         model.head(model.hidden(right)[row, -1])),
        ("pads on the left, of which the model was not told: the row sees them, and its "
         "positions are shifted", model.head(model.hidden(left)[row, -1])),
        ("pads on the left that are masked, but the positions are not shifted",
         model.head(model.hidden(own, _From(T - own.shape[1]))[0, -1])),
        ("a prompt cut to the length of the shortest",
         model.head(model.hidden(torch.tensor([prompts[row][:shortest]]))[0, -1])),
        *((f"these are the logits of prompt {other}", logits)
          for other, logits in enumerate(others) if other != row),
    ]  # fmt: skip
    for mistake, logits in known:
        if torch.allclose(yours, logits):
            return f"yours is what this gives: {mistake}"
    return "alone, this prompt has other logits at its last token"


@torch.no_grad()
def check_generate_rows(answer: Callable[..., list[list[int]]]) -> Evidence:
    """Compare with each row alone; the end token is one that a row really makes."""
    model, random = random_model(block_size=24), Random(10)
    shapes = [(1, 1), (1, 3), (2, 2), (2, 4)] + [(random.randint(2, 5), 8) for _ in range(12)]
    tokens = rows = 0
    for number, (B, longest) in enumerate(shapes):
        ids = torch.cat([random_ids(4, model, seed=100 * number + row) for row in range(B)])
        limits = [random.randint(0, longest) for _ in range(B)]
        limits[random.randrange(B)] = longest
        free = [_alone(model, row, limit) for row, limit in zip(ids, limits, strict=True)]
        eos = random.choice(max(free, key=len))
        target = [_until(text, eos) for text in free]
        case = f"{B} {'row' if B == 1 else 'rows'}, limits {limits}, end token {eos}"
        before = ids.clone()
        with counting(model) as counts:
            yours = attempt(case, _lists_from, answer, model, ids, list(limits), eos)
        if not ids.equal(before):
            raise Failure(case, "prompts as they were", "other prompts", "you wrote into ids")
        if len(yours) != B:
            raise Failure(case, f"{B} lists", f"{len(yours)} lists", "one list for each row")
        for row in range(B):
            if yours[row] != target[row]:
                raise Failure(
                    f"{case}, row {row}", target[row], yours[row],
                    _why_row(target, free, yours[row], row, eos),
                )  # fmt: skip
        tokens += sum(map(len, target))
        rows += counts.head_rows
    return Evidence(
        True,
        f"passed: {len(shapes)} batches, each row ends as if it were alone\n"
        f"  cost: {rows} rows of logits for {tokens} tokens"
        + ("" if rows <= tokens else ": rows that had ended were computed, too"),
    )


def _alone(model: GPT, prompt: torch.Tensor, limit: int) -> list[int]:
    ids = prompt[None]
    for _ in range(limit):
        token = model.head(model.hidden(ids)[:, -1]).argmax(dim=-1, keepdim=True)
        ids = torch.cat((ids, token), dim=1)
    return ids[0, len(prompt) :].tolist()


def _until(text: list[int], eos: int) -> list[int]:
    return text[: text.index(eos) + 1] if eos in text else text


def _lists_from(answer: Callable[..., list[list[int]]], *arguments: object) -> list[list[int]]:
    return [[int(token) for token in row] for row in answer(*arguments)]


def _why_row(
    target: list[list[int]], free: list[list[int]], yours: list[int], row: int, eos: int
) -> str:
    right = target[row]
    if yours[: len(right)] == right:
        ended = "its end token" if right and right[-1] == eos else "its own limit"
        return f"the row goes on behind {ended}: tokens that nobody asked for"
    if yours == right[: len(yours)]:
        if right[len(yours) :] == [eos]:
            return "its end token is missing: here it is the last of the row's tokens"
        return "the row ends too early: another row's end or limit is not its own"
    if any(yours[:1] == other[:1] for at, other in enumerate(free) if at != row):
        return "its first token is that of another row"
    same = next(i for i, pair in enumerate(zip(yours, right, strict=False)) if len(set(pair)) == 2)
    return f"new token {same} is the first that differs from the row's own text alone"


@torch.no_grad()
def check_choose_rows(answer: Callable[..., torch.Tensor]) -> Evidence:
    """Compare with the choice for each row alone; some batches have as many rows as tokens."""
    random = Random(10)
    shapes = [(1, 4), (3, 3), (4, 4), (5, 5), (2, 5)]
    shapes += [(random.randint(2, 6), random.randint(2, 8)) for _ in range(30)]
    for B, V in shapes:
        logits = torch.tensor([[random.gauss(0, 2) for _ in range(V)] for _ in range(B)])
        logits = logits.double()
        temperatures = [random.choice((0, 0.5, 1.0, 2.0)) for _ in range(B)]
        if B > 1:  # a greedy row beside one that isn't
            temperatures[0], temperatures[1] = random.choice([(0, 2.0), (2.0, 0), (0.5, 2.0)])
        us = [_inside_a_share(row, t, random) for row, t in zip(logits, temperatures, strict=True)]
        target = _choices(logits, temperatures, us)
        case = f"{B} rows of {V} logits, temperatures {temperatures}, us {us}"
        given = logits.clone()
        yours = attempt(case, _ids_from, answer, given, list(temperatures), list(us))
        if not given.equal(logits):
            raise Failure(case, "logits as they were", "other logits", "you wrote into them")
        if yours != target:
            why = _why_choices(logits, temperatures, us, target, yours)
            raise Failure(case, target, yours, why)
    return Evidence(
        True,
        f"passed: {len(shapes)} batches, each row by its own temperature and number\n"
        f"  cost: {sum(B for B, _ in shapes)} tokens, and no number drawn",
    )


def _choices(logits: torch.Tensor, temperatures: list[float], us: list[float]) -> list[int]:
    chosen = []
    for row, temperature, u in zip(logits, temperatures, us, strict=True):
        if temperature == 0:
            chosen.append(row.argmax().item())
        else:
            ends = (row / temperature).softmax(dim=0).cumsum(dim=0)
            chosen.append((ends <= u).sum().item())
    return chosen


def _inside_a_share(row: torch.Tensor, temperature: float, random: Random) -> float:
    """A number to two places, away from the edges of the shares, where rounding would decide."""
    ends = (row / (temperature or 1)).softmax(dim=0).cumsum(dim=0)
    while True:
        u = round(random.random(), 2)
        if u < 1 and (ends - u).abs().min() > 1e-6:
            return u


def _ids_from(answer: Callable[..., torch.Tensor], *arguments: object) -> list[int]:
    ids = tensor_from(answer, *arguments)
    if ids.dim() != 1:
        raise ValueError(f"it returned shape {tuple(ids.shape)}, not one token for each row, (B,)")
    return [int(token) for token in ids]


def _why_choices(
    logits: torch.Tensor,
    temperatures: list[float],
    us: list[float],
    target: list[int],
    yours: list[int],
) -> str:
    B, V = logits.shape
    if len(yours) != B:
        return f"one token for each row: {B}"
    known = {
        "one row is greedy, and all became greedy": [row.argmax().item() for row in logits],
        "the temperature of row 0 was taken for all": _choices(logits, temperatures[:1] * B, us),
        "the number of row 0 was taken for all": _choices(logits, temperatures, us[:1] * B),
        "the token of row 0 was copied to all": target[:1] * B,
    }
    if B == V:
        columns = logits / torch.tensor([t or 1 for t in temperatures])
        known[
            "temperature b divided column b, not row b: (B, V) / (B,) has the right shape only "
            "because B equals V, so it raises no error"
        ] = _choices(columns, [t and 1.0 for t in temperatures], us)
    found = [f"yours is what this gives: {why}" for why, tokens in known.items() if tokens == yours]
    row = next(row for row in range(B) if yours[row] != target[row])
    if temperatures[row] == 0:
        found.append(f"row {row} has temperature 0: its likeliest token, and nothing to divide by")
    return "\n  ".join(found) or f"row {row} is the first that differs from its choice alone"
