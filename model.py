"""GPT-2, exactly and nothing else: ids go in, one row of logits per position comes out.

Read it from the bottom: `GPT.forward` is embeddings, blocks, a final norm and the head. Each block
is attention, where positions exchange information, and an MLP, where each position works alone.

Shapes in comments: B batch, T new tokens, S tokens so far (those in a cache, then the new ones),
C channels (n_embd), H heads, D channels of one head (C = H * D), V vocabulary.

Names and shapes of the parameters are those of the published GPT-2 files, so a checkpoint loads
with `load_state_dict` and no transposing. Architecture: Radford et al. 2019, "Language Models are
Unsupervised Multitask Learners", and the TensorFlow code that came with it.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass(frozen=True)
class GPTConfig:
    """The numbers that fix a model's shape; the defaults are GPT-2's smallest, 124M parameters."""

    block_size: int = 1024  # positions the model can see at once: its context
    vocab_size: int = 50257
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0  # share of values zeroed in training

    def __post_init__(self):
        for name in ("block_size", "vocab_size", "n_layer", "n_head", "n_embd"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if self.n_embd % self.n_head:
            raise ValueError(
                f"n_embd {self.n_embd} can't be split into {self.n_head} heads: "
                "choose n_head so that it divides n_embd"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}: it must be at least 0 and below 1")


class Cache(Protocol):
    """What `GPT.hidden` asks of a cache; `stages/stage4_kv_cache.py` has the first one.

    One forward of T new tokens asks for their positions and the mask once, then each layer appends
    its keys and values, and only after the last layer does the length advance: so all layers of one
    forward see the same length.
    """

    def positions(self, T: int) -> torch.Tensor:
        """The positions of the next T tokens, (T,) or (B, T)."""

    def mask(self, T: int) -> torch.Tensor | None:
        """Which of S keys each of the T queries sees, True = sees.

        None if that needs no saying: nothing is cached yet, or there is one query, which sees all.
        """

    def append(
        self, layer: int, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep a layer's new keys and values, (B, H, T, D); return all of them, (B, H, S, D)."""

    def advance(self, T: int) -> None:
        """The T tokens are now part of the past."""


def normal(rows: int, columns: int, std: float) -> torch.Tensor:
    """Random numbers of mean 0 and standard deviation std, (rows, columns)."""
    weight = torch.empty(rows, columns)
    if weight.is_meta:  # loading builds a model without numbers, and then there is nothing to draw
        return weight
    return torch.randn(rows, columns).mul_(std)


class Projection(nn.Module):
    """x @ W + b with W stored as (in, out), as the GPT-2 files do (nn.Linear stores (out, in))."""

    def __init__(self, n_in: int, n_out: int, std: float):
        super().__init__()
        self.weight = nn.Parameter(normal(n_in, n_out, std))
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias  # (..., in) -> (..., out)


class Dropout(nn.Module):
    """Zeroes a share of the values, which helps training; without gradients, none of them.

    So a model left in train mode generates as one in eval mode, and no loop has to switch modes.
    """

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def rate(self) -> float:
        return self.p if self.training and torch.is_grad_enabled() else 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, self.rate()) if self.p else x


class Attention(nn.Module):
    """Each position looks at itself and those before it, and takes a weighted mean of their values.

    Per head: softmax(q @ k.T / sqrt(D)) @ v, where a query may not see the keys after it.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        C, std = config.n_embd, 1 / math.sqrt(config.n_embd)
        self.n_head = config.n_head
        self.c_attn = Projection(C, 3 * C, std)
        self.c_proj = Projection(C, C, std)
        # A head starts by writing back what it reads: then copying from the text, which a story
        # needs for its names, is learned from the start and not after a long plateau.
        self.c_proj.weight.data.copy_(self.c_attn.weight.data[:, 2 * C :].T)
        self.attn_dropout = Dropout(config.dropout)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None, layer: int, cache: Cache | None
    ) -> torch.Tensor:
        B, T, C = x.shape
        qkv = self.c_attn(x).view(B, T, 3, self.n_head, -1)  # (B, T, 3, H, D)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # three (B, H, T, D)
        if cache is not None:
            k, v = cache.append(layer, k, v)  # two (B, H, S, D)
        causal = mask is None and T > 1  # right only if no keys came before: see causal_mask
        y = F.scaled_dot_product_attention(
            q, k, v, mask, dropout_p=self.attn_dropout.rate(), is_causal=causal
        )  # (B, H, T, D)
        y = y.transpose(1, 2).reshape(B, T, C)  # heads side by side again
        return self.dropout(self.c_proj(y))


class MLP(nn.Module):
    """Each position alone: four times wider, through GELU, and back."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        C, std = config.n_embd, 1 / math.sqrt(config.n_embd)
        self.c_fc = Projection(C, 4 * C, std)
        self.c_proj = Projection(4 * C, C, std / math.sqrt(2 * config.n_layer))
        self.dropout = Dropout(config.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.c_fc(x), approximate="tanh")  # (B, T, 4C); GPT-2 has the tanh form
        return self.dropout(self.c_proj(x))  # (B, T, C)


class Block(nn.Module):
    """Attention, then the MLP; each reads a normalised copy of the stream and adds to it."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=1e-5)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, eps=1e-5)
        self.mlp = MLP(config)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None, layer: int, cache: Cache | None
    ) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x), mask, layer, cache)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """The language model: ids (B, T) to logits (B, T, V), one prediction per position.

    Weights start from a normal distribution of standard deviation 1/sqrt(C), so that activations
    keep their size whatever the width; the MLPs' writes into the residual stream start smaller by
    sqrt(2 * n_layer), the number of writes; attention starts as a copier.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        V, C, std = config.vocab_size, config.n_embd, 1 / math.sqrt(config.n_embd)
        self.wte = nn.Embedding.from_pretrained(normal(V, C, std), freeze=False)
        self.wpe = nn.Embedding.from_pretrained(normal(config.block_size, C, std), freeze=False)
        self.dropout = Dropout(config.dropout)
        self.h = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd, eps=1e-5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of every position: ids (B, T) -> (B, T, V)."""
        return self.head(self.hidden(ids))

    def hidden(self, ids: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        """What the model makes of T new tokens, before the head: ids (B, T) -> (B, T, C).

        With a cache, the tokens already in it are seen too, and the T new ones are added to it.
        Raises ValueError for no ids, ids outside the vocabulary, or too many positions.
        """
        self._check(ids)
        T = ids.shape[1]
        if cache is None:
            positions, mask = torch.arange(T, device=ids.device), None  # nothing came before
        else:
            positions, mask = cache.positions(T), cache.mask(T)
        x = self.dropout(self.wte(ids) + self.wpe(positions))  # (B, T, C)
        for layer, block in enumerate(self.h):
            x = block(x, mask, layer, cache)
        if cache is not None:
            cache.advance(T)
        return self.ln_f(x)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores of every token as the next one: (..., C) -> (..., V); shares wte's weights."""
        return hidden @ self.wte.weight.T

    def _check(self, ids: torch.Tensor) -> None:
        require_ids(ids)
        tokens, limit, V = ids.shape[1], self.config.block_size, self.config.vocab_size
        if ids.numel() == 0:
            raise ValueError("no ids: begin with at least one, such as the end-of-text token")
        if tokens > limit:
            raise ValueError(f"{tokens} tokens, the model reads {limit}: give ids[:, -{limit}:]")
        low, high = ids.aminmax()
        if low < 0 or high >= V:
            wrong = low.item() if low < 0 else high.item()
            raise ValueError(f"id {wrong} is not a token: the vocabulary has ids 0 to {V - 1}")


def require_ids(ids: object) -> None:
    """ValueError unless ids are what the model and the loops take: int64, (B, T)."""
    kind, shape = getattr(ids, "dtype", type(ids).__name__), tuple(getattr(ids, "shape", ()))
    if kind is not torch.int64 or len(shape) != 2:
        raise ValueError(
            f"ids are {kind} of shape {shape}: the model reads int64 of shape (batch, tokens), "
            "such as torch.tensor([[1, 2]])"
        )


def causal_mask(T: int, S: int, device: torch.device) -> torch.Tensor:
    """Which of S keys each of the last T positions sees, (T, S), True = sees.

    The last query sees every key, each one before it a key less. T = 2 new tokens after 3 cached:

        query 3 | 1 1 1 1 0
        query 4 | 1 1 1 1 1

    The `is_causal=True` of PyTorch's attention lets query i see keys 0 to i instead, as if nothing
    came before the new tokens.
    """
    return torch.ones(T, S, dtype=torch.bool, device=device).tril(diagonal=S - T)
