"""Where numbers lie in memory: the same model, faster steps."""

import torch

from model import GPT


def lay_out_for_decoding(model: GPT) -> GPT:
    """Store the token embedding column by column; shapes and results stay. Not for training.

    The head multiplies by wte.T. Row by row in memory, each of V results is a dot product along its
    own row. Column by column it is the (in, out) order of the other projections, and a step of
    GPT-2's smallest shape takes about three quarters of the time (benchmarks/NOTES.md).
    """
    weight = model.wte.weight
    if weight.dtype in (torch.float32, torch.float64):  # no gain for the 16-bit types
        weight.data = weight.data.T.contiguous().T
    return model
