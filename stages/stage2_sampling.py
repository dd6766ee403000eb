"""Stage 2: decoding rules. How a token is chosen becomes an argument of the loop.

Argmax gives one text per prompt, and it is often a dull one. Sampling draws the next token by its
probability instead, after filters that reshape the distribution: temperature makes it sharper or
flatter, top-k, top-p and min-p drop the unlikely tokens. They apply in this order, as in Hugging
Face's transformers. Each is a function of logits (B, V) that returns new logits of that shape;
a dropped token gets minus infinity, so its probability is exactly zero.

Costs: next to nothing beside the forward pass. Stays equal: with `choose=greedy`, the tokens.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral

import torch

from model import GPT, require_ids
from support.checkpoint import TINY, load
from support.tokenizer import decode

Choose = Callable[[torch.Tensor], torch.Tensor]  # logits (B, V) -> tokens (B, 1)


@torch.no_grad()
def generate(model: GPT, ids: torch.Tensor, max_new_tokens: int, choose: Choose) -> torch.Tensor:
    """Append a token by the rule `choose`, max_new_tokens times: (B, T) -> (B, T + new)."""
    require_ids(ids)
    for _ in range(max_new_tokens):
        context = ids[:, -model.config.block_size :]
        hidden = model.hidden(context)  # forward pass: (B, T, C)
        logits = model.head(hidden[:, -1])  # logits of the last position: (B, V)
        token = choose(logits)  # choose: (B, 1)
        ids = torch.cat((ids, token), dim=1)  # append: (B, T + 1)
    return ids


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """The likeliest token of each row, on a tie the lowest id: (B, V) -> (B, 1)."""
    require_finite(logits)
    return logits.argmax(dim=-1, keepdim=True)


def apply_temperature(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Divide logits by temperature > 0: ratios of probabilities go to the power 1/temperature.

    p = [.6, .3, .1] becomes [.78, .20, .02] at 0.5 and [.47, .33, .19] at 2. The row's maximum
    is subtracted first, in float64, so that no temperature is too small to divide by.
    """
    require(
        0 < temperature < math.inf, "temperature", temperature, "finite, and 0 (greedy) or above"
    )
    shifted = logits.double() - logits.amax(dim=-1, keepdim=True)
    return (shifted / temperature).to(logits.dtype)


def apply_top_k(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Keep the k >= 1 largest logits of each row, on a tie the lower ids; k above V keeps all.

    logits [1, 3, 3, 2], k=1 -> keeps id 1.  Source: Fan et al. 2018, arXiv:1805.04833.
    """
    require(isinstance(k, Integral) and k > 0, "top_k", k, "a whole number from 1, or 0 for off")
    order = logits.argsort(dim=-1, descending=True, stable=True)  # ids, likeliest first
    return logits.scatter(-1, order[:, k:], -math.inf)


def apply_top_p(logits: torch.Tensor, p: float) -> torch.Tensor:
    """Keep the smallest set of likeliest tokens whose probability reaches p, at least one.

    p = [.5, .25, .125, .125], top_p=.6 -> keeps 2: .5 is not enough, and the token that crosses
    .6 belongs to the set.  Source: Holtzman et al. 2020, arXiv:1904.09751.
    """
    require(0 < p <= 1, "top_p", p, "above 0 and at most 1, which is off")
    ranked, order = logits.sort(dim=-1, descending=True, stable=True)
    probs = ranked.double().softmax(dim=-1)  # float64: thousands of them are summed
    mass_before = probs.cumsum(dim=-1) - probs  # of the likelier tokens; 0 for the first
    return logits.scatter(-1, order, ranked.masked_fill(mass_before >= p, -math.inf))


def apply_min_p(logits: torch.Tensor, p: float) -> torch.Tensor:
    """Keep tokens with at least p times the probability of the likeliest one.

    p = [.5, .3, .15, .05], min_p=.3 -> keeps 3: the bar is at .15.
    Source: Nguyen et al. 2024, arXiv:2407.01082.
    """
    require(0 <= p <= 1, "min_p", p, "from 0, which is off, to 1")
    probs = logits.softmax(dim=-1)
    bar = p * probs.amax(dim=-1, keepdim=True)
    return logits.masked_fill(probs < bar, -math.inf)


def pick(logits: torch.Tensor, u: float) -> torch.Tensor:
    """Invert the cumulative distribution at u, for 0 <= u < 1: (1, V) -> (1, 1).

    Tokens in order of id share the interval from 0 to 1 by probability, and u falls into one share:
    p = [.5, 0, .3, .2] ends its shares at [.5, .5, .8, 1], so u=.5 gives id 2. An empty share is
    never hit: the choice is the first id whose share ends beyond u.
    """
    ends = logits.softmax(dim=-1).cumsum(dim=-1)
    ends = ends / ends[:, -1:]  # rounding leaves the sum a little off 1, and u may come that near
    return torch.searchsorted(ends, torch.full_like(ends[:, :1], u), right=True)


class Sampler:
    """Choose one sequence's tokens: filters, then a draw from its own random numbers.

    One uniform number is drawn per token and inverted in float64 on the CPU, so the tokens depend
    on seed and logits alone: not on the device, not on other sequences, not on how many candidates
    a filter left. Python's generator is used because its sequence for a seed is guaranteed.

    temperature  >= 0; 0 is greedy and draws no number
    top_k        how many tokens to keep; 0 or None is off
    top_p        in (0, 1]; 1 is off
    min_p        in [0, 1]; 0 is off
    seed         >= 0
    """

    def __init__(
        self,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
    ):
        require(isinstance(seed, Integral) and seed >= 0, "seed", seed, "a whole number from 0")
        self.temperature, self.top_k, self.top_p, self.min_p = temperature, top_k, top_p, min_p
        self.random = random.Random(seed)
        self.step = 0
        if temperature != 0:
            self.filter(torch.zeros(1, 1))  # each filter refuses a bad setting, now and not later

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """Choose a token: logits (1, V) -> (1, 1). ValueError if a logit is NaN or infinite."""
        require(len(logits) == 1, "batch", len(logits), "1, or pass each_row([Sampler(), ...])")
        require_finite(logits, self.step)
        self.step += 1
        if self.temperature == 0:
            return logits.argmax(dim=-1, keepdim=True)
        filtered = self.filter(logits.detach().to("cpu", torch.float64))
        return pick(filtered, self.random.random()).to(logits.device)

    def filter(self, logits: torch.Tensor) -> torch.Tensor:
        """Temperature and the filters that are on, in their order: (B, V) -> (B, V)."""
        for _, filtered in self.each_filter(logits):
            logits = filtered
        return logits

    def each_filter(self, logits: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """The logits after each filter that is on, with its name."""
        logits = apply_temperature(logits, self.temperature)
        yield "temperature", logits
        if self.top_k:
            logits = apply_top_k(logits, self.top_k)
            yield "top_k", logits
        if self.top_p != 1:
            logits = apply_top_p(logits, self.top_p)
            yield "top_p", logits
        if self.min_p != 0:
            yield "min_p", apply_min_p(logits, self.min_p)


def each_row(samplers: Sequence[Sampler]) -> Choose:
    """One rule for several sequences: row i of the logits goes to sampler i."""

    def choose(logits: torch.Tensor) -> torch.Tensor:
        rows = logits.split(1)  # B times (1, V)
        if len(rows) != len(samplers):
            raise ValueError(f"{len(samplers)} samplers for {len(rows)} rows: give one to each row")
        return torch.cat([sampler(row) for sampler, row in zip(samplers, rows, strict=True)])

    return choose


def require(holds: bool, option: str, value: object, allowed: str) -> None:
    """Raise a ValueError that teaches, unless `holds`."""
    if not holds:
        raise ValueError(f"{option} is {value}: it must be {allowed}")


def require_finite(logits: torch.Tensor, step: int | None = None) -> None:
    """Raise ValueError if a logit is NaN or infinite: any choice from them would be noise."""
    lowest, highest = logits.aminmax()  # if a logit is NaN, so are they
    if not (math.isfinite(lowest) and math.isfinite(highest)):
        where = "" if step is None else f" at step {step}"
        raise ValueError(f"logits{where} are NaN or infinite: the model's weights or dtype failed")


if __name__ == "__main__":
    torch.set_num_threads(1)  # the fastest for a model this small
    model, tokenizer = load(TINY)
    prompt = torch.tensor([tokenizer.encode("Once upon a time")])
    for sampler in (Sampler(temperature=0), Sampler(0.8, seed=1), Sampler(0.8, top_k=5, seed=2)):
        ids = generate(model, prompt, 40, choose=sampler)
        print(f"temperature {sampler.temperature}, top_k {sampler.top_k}:")
        print(f"    {decode(tokenizer, ids[0].tolist())!r}")
