"""The same model, laid out for decode steps on a CPU: less to wait for memory.

Such a step reads every weight for few rows, one of each text, so it takes about as long as the
reading. Names, shapes and numbers stay; sums may be rounded in another order. Measured in
benchmarks/NOTES.md.
"""

from functools import partial

import torch

from model import GPT, Projection

SMALL = 10_000_000  # parameters, below which one thread is faster than several
FEW = 16  # rows, up to which a product is cut into parts


def is_small(model: GPT) -> bool:
    """Whether a step of it is too short to be shared by threads."""
    return sum(parameter.numel() for parameter in model.parameters()) < SMALL


def lay_out_for_decoding(model: GPT) -> GPT:
    """Give all matrices the memory order that is read fastest for few rows. Not for training.

    That is (in, out) for float32, in which the projections are stored: so the token embedding, by
    whose transpose the head multiplies, is stored column by column. For the 16-bit types it is
    (out, in): so the projections are. All threads take part in the steps of a large model.
    """
    weights = [model.wte.weight]
    if weights[0].dtype in (torch.bfloat16, torch.float16):
        weights = [each.weight for each in model.modules() if isinstance(each, Projection)]
    for weight in weights:
        weight.data = weight.data.T.contiguous().T
    if not is_small(model):
        for module in model.modules():
            if isinstance(module, Projection):
                vars(module)["forward"] = partial(_projection, module)  # in front of the class's
        vars(model)["head"] = partial(_head, model)
    return model


def _projection(module: Projection, x: torch.Tensor) -> torch.Tensor:
    return _product(x, module.weight) + module.bias


def _head(model: GPT, hidden: torch.Tensor) -> torch.Tensor:
    return _product(hidden, model.wte.weight.T)


def _product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x @ weight, (..., in) -> (..., out): the sum over `in` is cut into a part for each thread.

    PyTorch multiplies few rows by a matrix on one thread, but gives the products of a batch to
    several.
    """
    n_in, n_out = weight.shape
    parts = torch.get_num_threads()
    if x.numel() > FEW * n_in or n_in % parts or not weight.is_contiguous():
        return x @ weight
    rows = x.reshape(-1, parts, n_in // parts).transpose(0, 1)  # (parts, rows, in / parts)
    sums = torch.bmm(rows, weight.view(parts, -1, n_out))  # (parts, rows, out)
    return sums.sum(0).view(*x.shape[:-1], n_out)
