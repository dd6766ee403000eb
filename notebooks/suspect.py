"""A generation loop with TEN PLANTED BUGS, for lesson 12 and for nothing else.

The docstrings say what is right. In ten places the code doesn't do it; such bugs were seen in
public code. `model` is a GPT of `model.py`, and a text is a list of ids.
"""

import math
from collections.abc import Callable, Sequence
from random import Random

import torch

from model import GPT
from stages.stage4_kv_cache import KVCache


def keep_top_k(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Exactly the k largest logits stay, on a tie the lower ids; the others become -inf: (V,)."""
    dropped = (logits < logits.topk(k).values[-1]).nonzero().flatten()
    return logits.index_fill(0, dropped, -math.inf)


def keep_top_p(logits: torch.Tensor, p: float) -> torch.Tensor:
    """The likeliest tokens stay, up to and with the one whose share makes their sum reach p: (V,).

    p = [.5, .25, .125, .125], top_p .6 -> two stay.
    """
    probs, ids = logits.softmax(dim=0).sort(descending=True, stable=True)
    ends = probs.cumsum(dim=0)
    return logits.index_fill(0, ids[ends > p], -math.inf)


def pick(probs: torch.Tensor, u: float) -> int:
    """The id in whose share u falls, 0 <= u < 1; the shares lie side by side in order of id: (V,).

    An id of probability 0 has no share and is never picked.
    """
    kept = probs.nonzero().flatten()
    ends = probs[kept].cumsum(dim=0)
    place = int((ends / ends[-1] <= u).sum())
    return place


class Rule:
    """Chooses a token from logits (V,): temperature, top-k, top-p, then a draw.

    Temperature 0 is greedy. A rule has its own random numbers: two rules with the same seed choose
    the same tokens from the same logits, and a rule doesn't draw the same number again and again.
    """

    def __init__(self, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, seed: int = 0):
        self.temperature, self.top_k, self.top_p, self.seed = temperature, top_k, top_p, seed
        self.random = Random(seed)

    def __call__(self, logits: torch.Tensor) -> int:
        if self.temperature == 0:
            return int(logits.argmax())
        logits = logits.double() / self.temperature
        if self.top_k:
            logits = keep_top_k(logits, self.top_k)
        if self.top_p < 1:
            logits = keep_top_p(logits, self.top_p)
        return pick(logits.softmax(dim=0), Random(self.seed).random())


class Stop:
    """Says why a text ends with this token, "eos" or "sequence", or None if it goes on.

    It ends at the token eos, or when its newest tokens are those of `sequence`.
    """

    def __init__(self, eos: int | None = None, sequence: Sequence[int] = ()):
        self.eos, self.sequence, self.recent = eos, list(sequence), []

    def __call__(self, token: int) -> str | None:
        if token == self.eos:
            return "eos"
        self.recent.append(token)
        if self.recent != self.sequence[: len(self.recent)]:
            self.recent.clear()
        return "sequence" if self.recent and self.recent == self.sequence else None


class Cache(KVCache):
    """Stage 4's, with positions and mask of its own: what `GPT.hidden` makes is as without one."""

    def positions(self, T: int) -> torch.Tensor:
        return torch.arange(T)

    def mask(self, T: int) -> torch.Tensor:
        return torch.ones(T, self.length + T, dtype=torch.bool).tril()


@torch.no_grad()
def generate(
    model: GPT,
    prompt: list[int],
    max_new_tokens: int,
    rule: Callable[[torch.Tensor], int],
    stop: Callable[[int], str | None],
    chunk: int | None = None,
) -> tuple[list[int], str]:
    """The new tokens of one text, and why it ended: what `stop` said, or "max_new_tokens".

    The prompt is read in pieces of at most `chunk` tokens, which changes no token, and it stays as
    it is. The token at which the text ends is its last.
    """
    ids, new = prompt, []
    cache = Cache(model, len(prompt) + max_new_tokens)
    while len(new) < max_new_tokens:
        unread = torch.tensor([ids[cache.length :]])
        for part in unread.split(chunk or len(ids), dim=1):
            hidden = model.hidden(part, cache)
        token = rule(model.head(hidden[0, -1]))
        ids.append(token)
        new.append(token)
        reason = stop(token)
        if reason:
            return new, reason
    return new, "max_new_tokens"


@torch.no_grad()
def generate_batch(
    model: GPT,
    prompts: list[list[int]],
    max_new_tokens: int,
    rules: Sequence[Callable[[torch.Tensor], int]],
    stops: Sequence[Callable[[int], str | None]],
) -> list[tuple[list[int], str]]:
    """`generate` for several texts, in one forward a step for all that haven't ended.

    Each has its own rule and its own stop, and gets what it gets alone.
    """
    texts = [list(prompt) for prompt in prompts]
    results = [([], "max_new_tokens") for _ in prompts]
    running = list(range(len(prompts)))
    for _ in range(max_new_tokens if prompts else 0):
        T = max(len(texts[b]) for b in running)
        padded = [texts[b] + [0] * (T - len(texts[b])) for b in running]
        last = [T - 1 for b in running]
        hidden = model.hidden(torch.tensor(padded))[torch.arange(len(running)), last]
        for b, logits in zip(tuple(running), model.head(hidden), strict=True):
            token = rules[b](logits)
            texts[b].append(token)
            results[b][0].append(token)
            reason = stops[0](token)
            if reason:
                results[b] = results[b][0], reason
                running.remove(b)
        if not running:
            break
    return results
