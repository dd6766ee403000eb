"""Independent oracles and stand-in models that the tests compare against."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from model import GPT, Cache, GPTConfig
from notebooks.checks.models import TINY, large_weights
from stages import stage4_kv_cache as stage4
from stages.stage2_sampling import Sampler
from stages.stage3_stopping import token_budget


def random_model(config: GPTConfig = TINY, seed: int = 0, dtype=torch.float64) -> GPT:
    """The model that the lessons' checkers use, in any shape."""
    return large_weights(config, seed, dtype)


def numpy_logits(model: GPT, ids: list[int]) -> np.ndarray:
    """GPT-2 written from its equations, float64, one sequence: ids (T,) -> logits (T, V)."""
    w = {name: p.detach().double().numpy() for name, p in model.named_parameters()}
    config = model.config

    def norm(x, name):
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / np.sqrt(variance + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x, name):
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    T, D = len(ids), config.n_embd // config.n_head
    x = np.array([w["wte.weight"][token] + w["wpe.weight"][i] for i, token in enumerate(ids)])
    for layer in range(config.n_layer):
        q, k, v = np.split(linear(norm(x, f"h.{layer}.ln_1"), f"h.{layer}.attn.c_attn"), 3, axis=-1)
        heads = []
        for head in range(config.n_head):
            part = slice(head * D, (head + 1) * D)
            rows = []
            for t in range(T):  # position t sees positions 0 to t
                scores = k[: t + 1, part] @ q[t, part] / np.sqrt(D)
                weights = np.exp(scores - scores.max())
                rows.append(weights / weights.sum() @ v[: t + 1, part])
            heads.append(np.array(rows))
        x = x + linear(np.concatenate(heads, axis=-1), f"h.{layer}.attn.c_proj")
        a = linear(norm(x, f"h.{layer}.ln_2"), f"h.{layer}.mlp.c_fc")
        a = 0.5 * a * (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3)))
        x = x + linear(a, f"h.{layer}.mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


class Scripted:
    """A stub model that continues a prompt with the given ids: logits are 0, and 50 at the next.

    It has of GPT only what the loops use. `calls` lists the number of tokens of each forward.
    """

    def __init__(self, prompt_tokens: int, script: list[int], vocab_size: int, block_size=1024):
        self.config = GPTConfig(block_size, vocab_size, n_layer=1, n_head=1, n_embd=1)
        self.wte = SimpleNamespace(weight=torch.zeros(vocab_size, 1))
        self.next_after = [0] * (prompt_tokens - 1) + script  # by position
        self.calls: list[int] = []

    def hidden(self, ids: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        B, T = ids.shape
        self.calls.append(T)
        positions = torch.arange(T) if cache is None else cache.positions(T)
        logits = torch.zeros(B, T, self.config.vocab_size)
        for row, position in enumerate(positions.tolist()):
            logits[:, row, self.next_after[position]] = 50.0
        if cache is not None:
            cache.advance(T)
        return logits

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.hidden(ids))


class Hashed:
    """A stub model whose logits are a hash of all tokens and positions that a query sees.

    They are exact in float32 and have no ties, so one token or position of another row, or one that
    is missing, always shows. It has of GPT only what the loops use; the cache carries its tokens.
    """

    PRIME = 1_000_003

    def __init__(self, block_size: int = 64, vocab_size: int = 31):
        self.config = GPTConfig(block_size, vocab_size, n_layer=1, n_head=1, n_embd=2)
        self.wte = SimpleNamespace(weight=torch.zeros(vocab_size, 2))

    def hidden(self, ids: torch.Tensor, cache: Cache) -> torch.Tensor:
        T = ids.shape[1]
        positions, mask = cache.positions(T).expand_as(ids), cache.mask(T)
        new = torch.stack((ids, positions), dim=-1).float()[:, None]  # (B, 1, T, 2)
        seen, _ = cache.append(0, new, new)  # (B, 1, S, 2)
        cache.advance(T)
        token, position = seen[:, :, None].long().unbind(-1)  # two (B, 1, 1, S)
        code = (token + 1) * (position * 7919 + 104_729) % self.PRIME
        total = (code if mask is None else code * mask).sum(-1)[:, 0]  # (B, T), or (B, 1)
        total = (total % (self.PRIME - 1) + 1).expand_as(ids)
        every = torch.arange(1, self.config.vocab_size + 1)
        return (total[..., None] * every % self.PRIME).float() / self.PRIME * 8  # (B, T, V)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


def never(token: int) -> None:
    """A stop check that knows no end."""


def random_ids(tokens: int, seed: int = 0, config: GPTConfig = TINY, rows: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.vocab_size, (rows, tokens), generator=generator)


@dataclass(frozen=True)
class Wish:
    """What a request asks for, to make the same request as often as needed."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    sampler: tuple[tuple[str, Any], ...] = (("temperature", 0),)
    eos: frozenset[int] = frozenset()

    def choose(self) -> Sampler:
        return Sampler(**dict(self.sampler))

    def should_stop(self, token: int) -> str | None:
        return "eos" if token in self.eos else None

    def request(self, kind):
        """As stage 5's or stage 6's Request, which is the `kind`."""
        return kind(self.prompt, self.max_new_tokens, self.choose(), self.should_stop)

    def alone(self, model) -> tuple[list[int], str | None]:
        """Tokens and finish reason from stage 4."""
        ids = torch.tensor([self.prompt])
        steps = list(
            stage4.generate(model, ids, self.max_new_tokens, self.choose(), self.should_stop)
        )
        limit, reason = token_budget(ids, self.max_new_tokens, model.config.block_size, "stop")
        assert bool(steps) == bool(limit)
        return [step.token for step in steps], steps[-1].finish_reason if steps else reason


def wishes(config: GPTConfig = TINY) -> st.SearchStrategy[Wish]:
    """Wishes of all sorts: some end at once, some with the context, some greedily, some not."""
    ids = st.integers(0, config.vocab_size - 1)
    sampler = st.fixed_dictionaries(
        {"temperature": st.sampled_from([0, 0.8, 1.5, 3.0]), "seed": st.integers(0, 99)},
        optional={
            "top_k": st.integers(1, 40),
            "top_p": st.sampled_from([0.5, 0.9]),
            "min_p": st.sampled_from([0.01, 0.1]),
        },
    )
    return st.builds(
        Wish,
        st.lists(ids, min_size=1, max_size=config.block_size).map(tuple),
        st.integers(0, config.block_size + 4),
        sampler.map(lambda options: tuple(options.items())),
        st.frozensets(ids, max_size=3),
    )
