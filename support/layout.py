"""The same model, laid out for one-token steps on a CPU: less to wait for memory.

Such a step reads every weight for a single row, so it is as fast as the reading. Names, shapes and
numbers stay; sums may be rounded in another order. Measured in benchmarks/NOTES.md.
"""

from functools import partial

import torch

from model import GPT, Projection


def lay_out_for_decoding(model: GPT) -> GPT:
    """Give all matrices the memory order that is read fastest for a single row. Not for training.

    That is (in, out) for float32, in which the projections are stored: so the token embedding, by
    whose transpose the head multiplies, is stored column by column. For the 16-bit types it is
    (out, in): so the projections are.
    """
    weights = [model.wte.weight]
    if weights[0].dtype in (torch.bfloat16, torch.float16):
        weights = [each.weight for each in model.modules() if isinstance(each, Projection)]
    for weight in weights:
        weight.data = weight.data.T.contiguous().T
    return model


def share_among_threads(model: GPT) -> GPT:
    """Let all threads take part in a one-token step; worth it from some ten million parameters on.

    PyTorch multiplies one row by a matrix on a single thread, but gives the products of a batch to
    several. So the sum over `in` is cut into a part for each thread.
    """
    for module in model.modules():
        if isinstance(module, Projection):
            module.forward = partial(_projection, module)
    model.head = partial(_head, model)
    return model


def _projection(module: Projection, x: torch.Tensor) -> torch.Tensor:
    return _product(x, module.weight) + module.bias


def _head(model: GPT, hidden: torch.Tensor) -> torch.Tensor:
    return _product(hidden, model.wte.weight.T)


def _product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x @ weight: (..., in) -> (..., out)."""
    n_in, n_out = weight.shape
    parts = torch.get_num_threads()
    if x.numel() > n_in or n_in % parts or not weight.is_contiguous():  # more than a row, or no cut
        return x @ weight
    sums = torch.bmm(x.view(parts, 1, -1), weight.view(parts, -1, n_out))  # (parts, 1, out)
    return sums.sum(0).view(*x.shape[:-1], n_out)
