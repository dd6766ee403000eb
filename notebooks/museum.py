"""The bug museum: wrong answers that were seen in public code, or that learners write.

Each docstring says what is wrong, and where it was seen. MUSEUM names, for each wrong answer to an
exercise, words that the checker's evidence must contain: so a learner is told the symptom.
"""

import math
from collections.abc import Callable

import torch

# Lesson 03. From logits to a token: greedy and temperature


def _all_on_argmax(logits):
    return torch.eye(logits.shape[-1], dtype=logits.dtype)[logits.argmax(dim=-1)]


def temperature_multiplies(logits, T):
    """Multiplies where it should divide: a low temperature makes the text wilder."""
    if T == 0:
        return _all_on_argmax(logits)
    return (logits * T).softmax(dim=-1)


def probabilities_divided(logits, T):
    """Divides the probabilities and makes them sum to 1 again: nothing has changed."""
    if T == 0:
        return _all_on_argmax(logits)
    divided = logits.softmax(dim=-1) / T
    return divided / divided.sum(dim=-1, keepdim=True)


def zero_divides(logits, T):
    """No case for temperature 0: nanoGPT's and OpenAI's loops divide by it."""
    return ((logits - logits.amax(dim=-1, keepdim=True)) / T).softmax(dim=-1)


def maximum_without_keepdim(logits, T):
    """Right for one row, an error for most others, silently wrong when B equals V."""
    if T == 0:
        return _all_on_argmax(logits)
    return ((logits - logits.amax(dim=-1)) / T).softmax(dim=-1)


def logits_changed(logits, T):
    """Divides in place: the caller's logits are not the model's any more."""
    if T == 0:
        return _all_on_argmax(logits)
    logits -= logits.amax(dim=-1, keepdim=True)
    return logits.div_(T).softmax(dim=-1)


def overflows(logits, T):
    """Divides logits as they are: by a very small temperature they become infinite."""
    if T == 0:
        return _all_on_argmax(logits)
    return (logits / T).softmax(dim=-1)


def all_of_a_tie(logits, T):
    """At temperature 0 every token as likely as the first keeps a share."""
    top = logits.amax(dim=-1, keepdim=True)
    if T == 0:
        return (logits == top) / (logits == top).sum(dim=-1, keepdim=True)
    return ((logits - top) / T).softmax(dim=-1)


def ratio_upside_down(p1, p2, T):
    """To the power T, where it is 1 / T."""
    return (p1 / p2) ** T


def ratio_divided(p1, p2, T):
    """Divides the ratio itself; temperature divides its logarithm."""
    return p1 / p2 / T


def ratio_unmoved(p1, p2, T):
    """Takes temperature to be a factor that all tokens share, so that it cancels."""
    return p1 / p2


def probabilities_as_logits(p1, p2, T):
    """Divides probabilities by the temperature and takes their softmax."""
    return math.exp((p1 - p2) / T)


MUSEUM: dict[str, dict[Callable, str]] = {
    "03a": {
        temperature_multiplies: "upside down",
        probabilities_divided: "divide the logits, not the probabilities",
        zero_divides: "temperature 0 can't divide",
        maximum_without_keepdim: "a missing keepdim",
        logits_changed: "wrote into its input",
        overflows: "a number overflowed",
        all_of_a_tie: "on a tie",
    },
    "03b": {
        ratio_upside_down: "the likelier one must gain",
        ratio_divided: "the logarithm of a ratio",
        ratio_unmoved: "the ratio at temperature 1",
        probabilities_as_logits: "the logarithm of a ratio",
    },
}
