"""Small random models and texts for the checkers."""

from dataclasses import replace

import torch

from model import GPT, GPTConfig

TINY = GPTConfig(block_size=16, vocab_size=32, n_layer=2, n_head=2, n_embd=16)


def random_model(block_size: int = 16, seed: int = 0) -> GPT:
    """A small float64 model with large random weights."""
    return large_weights(replace(TINY, block_size=block_size), seed)


def large_weights(config: GPTConfig, seed: int = 0, dtype: torch.dtype = torch.float64) -> GPT:
    """A model with large random weights, biases and gains: a fresh one is nearly uniform.

    Its attention is no copier: that is symmetric, as a fresh one's, and hides a missing transpose.
    The embedding of tokens stays small beside all else, or the model would repeat one token.
    """
    torch.manual_seed(seed)
    model = GPT(config).to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif name != "wte.weight":
                parameter.normal_(std=3 * parameter.std().item())
    return model.eval()


def random_ids(tokens: int, model: GPT, seed: int = 0) -> torch.Tensor:
    """A text for the model: ids (1, tokens)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(model.config.vocab_size, (1, tokens), generator=generator)
