"""Independent oracles and stand-in models that the tests compare against."""

from types import SimpleNamespace

import numpy as np
import torch

from model import GPT, Cache, GPTConfig

TINY = GPTConfig(block_size=16, vocab_size=32, n_layer=2, n_head=2, n_embd=16)


def random_model(config: GPTConfig = TINY, seed: int = 0, dtype=torch.float64) -> GPT:
    """A model with large random weights, biases and gains: a fresh one is nearly uniform.

    Its attention is no copier: that is symmetric, as a fresh one's, and hides a missing transpose.
    The embedding of tokens stays small beside all else, or the model would repeat one token.
    """
    torch.manual_seed(seed)
    model = GPT(config).to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name == "wte.weight":
                continue
            if parameter.dim() > 1:
                parameter.normal_(std=3 * parameter.std().item())
            else:
                parameter += 0.3 * torch.randn_like(parameter)
    return model.eval()


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


def never(token: int) -> None:
    """A stop check that knows no end."""


def random_ids(tokens: int, seed: int = 0, config: GPTConfig = TINY, rows: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.vocab_size, (rows, tokens), generator=generator)
