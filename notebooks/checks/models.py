"""Small random models and texts for the checkers."""

import torch

from model import GPT, GPTConfig


def random_model(block_size: int = 16, seed: int = 0) -> GPT:
    """A small float64 model with large random weights: a fresh one is nearly uniform."""
    torch.manual_seed(seed)
    config = GPTConfig(block_size=block_size, vocab_size=32, n_layer=2, n_head=2, n_embd=16)
    model = GPT(config).to(torch.float64)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn_like(parameter)
            elif name != "wte.weight":  # large ones would make it repeat one token
                parameter.normal_(std=3 * parameter.std().item())
    return model.eval()


def random_ids(tokens: int, model: GPT, seed: int = 0) -> torch.Tensor:
    """A text for the model: ids (1, tokens)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(model.config.vocab_size, (1, tokens), generator=generator)
