"""The same model, laid out for decode steps on a CPU: less to wait for memory.

Such a step reads every weight for few rows, one of each text, so it takes about as long as the
reading. Names, shapes and numbers stay; sums may be rounded in another order. Measured in
benchmarks/NOTES.md.
"""

from collections.abc import Callable
from functools import partial

import torch

from model import GPT, Projection

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

SMALL = 10_000_000  # parameters, up to which one thread is faster than several


def is_small(model: GPT) -> bool:
    """Whether a step of it is too short to be shared by threads."""
    return sum(parameter.numel() for parameter in model.parameters()) < SMALL


def lay_out_for_decoding(model: GPT, rows: int = 1) -> GPT:
    """Give all matrices the memory order that is read fastest by steps of `rows` texts.

    Float32 matrices are stored as (in, out), others as (out, in), and so are those of a large model
    for several rows. What has the other order is copied into it. Not for training.
    """
    sixteen_bits = model.wte.weight.dtype in (torch.bfloat16, torch.float16)
    shared = not sixteen_bits and not is_small(model)
    weights = [model.wte.weight]  # (V, C), and the head multiplies by its transpose: (out, in)
    if sixteen_bits or (shared and rows > 1):
        weights = [each.weight for each in model.modules() if isinstance(each, Projection)]
    for weight in weights:
        weight.data = weight.data.T.contiguous().T
    if shared:
        share_among_threads(model, rows)
    return model


def share_among_threads(model: GPT, rows: int = 1) -> None:
    """Let all threads take part in a step of few rows, which PyTorch computes mostly on one."""
    product = _one_row if rows == 1 else _few_rows
    for module in model.modules():
        if isinstance(module, Projection):
            module.forward = partial(_projection, product, module)
    model.head = partial(_head, product, model)


def _projection(product: Product, module: Projection, x: torch.Tensor) -> torch.Tensor:
    return product(x, module.weight) + module.bias


def _head(product: Product, model: GPT, hidden: torch.Tensor) -> torch.Tensor:
    return product(hidden, model.wte.weight.T)


def _one_row(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x @ weight, (..., in) -> (..., out): the sum of a single row is cut, a part for each thread.

    For PyTorch gives the products of a batch to several threads.
    """
    n_in, n_out = weight.shape
    parts = torch.get_num_threads()
    if x.numel() > n_in or n_in % parts or not weight.is_contiguous():  # more than a row, or no cut
        return x @ weight
    sums = torch.bmm(x.view(parts, 1, -1), weight.view(parts, -1, n_out))  # (parts, 1, out)
    return sums.sum(0).view(*x.shape[:-1], n_out)


def _few_rows(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x @ weight, (..., in) -> (..., out), as the transpose of weight.T @ x.T.

    In this form two to four rows take about as long as one, and eight twice as long. A single one
    is doubled, because PyTorch gives it to one thread.
    """
    rows = x.reshape(-1, x.shape[-1])
    if len(rows) == 1:
        rows = rows.repeat(2, 1)
    product = (weight.T @ rows.T).T  # (rows, out)
    return product[: x.numel() // x.shape[-1]].view(*x.shape[:-1], -1)
