"""The bug museum: wrong answers that were seen in public code, or that learners write.

Each docstring says what is wrong, and where it was seen. MUSEUM names, for each wrong answer to an
exercise, words that the checker's evidence must contain: so a learner is told the symptom.
"""

import math
from collections.abc import Callable

import torch

# Lesson 01. What is the loop?


def prompt_changed(model, ids, max_new_tokens, eos):
    """Appends to the caller's list, as picoGPT does: a second run goes on where the first ended."""
    for _ in range(max_new_tokens):
        token = int(model(ids).argmax())
        if token == eos:
            break
        ids.append(token)
    return ids


def end_token_ignored(model, ids, max_new_tokens, eos):
    """Never looks at what was chosen: nanoGPT's loop runs on into the next text."""
    ids = list(ids)
    for _ in range(max_new_tokens):
        ids.append(int(model(ids).argmax()))
    return ids


def end_token_kept(model, ids, max_new_tokens, eos):
    """Appends before it checks, so the text ends in a token that means nothing to a reader."""
    ids = list(ids)
    for _ in range(max_new_tokens):
        ids.append(int(model(ids).argmax()))
        if ids[-1] == eos:
            break
    return ids


def any_end_token_stops(model, ids, max_new_tokens, eos):
    """Looks for the end token in the whole text; a prompt may begin with one."""
    text = list(ids)
    for _ in range(max_new_tokens):
        if eos in text:
            break
        text.append(int(model(text).argmax()))
    return text[:-1] if len(text) > len(ids) and text[-1] == eos else text


def last_token_alone(model, ids, max_new_tokens, eos):
    """Feeds the newest token without those before it: right for a table, wrong for a model."""
    ids = list(ids)
    for _ in range(max_new_tokens):
        token = int(model(ids[-1:]).argmax())
        if token == eos:
            break
        ids.append(token)
    return ids


def logits_in_advance(model, ids, max_new_tokens, eos):
    """Asks for the next logits at the end of each turn: those of the last turn are thrown away."""
    ids = list(ids)
    logits = model(ids)
    for _ in range(max_new_tokens):
        token = int(logits.argmax())
        if token == eos:
            break
        ids.append(token)
        logits = model(ids)
    return ids


def prompt_left_out(model, ids, max_new_tokens, eos):
    """Returns what is new, and the caller asked for the text."""
    text = list(ids)
    for _ in range(max_new_tokens):
        token = int(model(text).argmax())
        if token == eos:
            break
        text.append(token)
    return text[len(ids) :]


def prompt_costs_forwards(P, N, eos_step):
    """Counts a forward for each token of the prompt; one reads them all."""
    return P + (N if eos_step is None else min(N, eos_step))


def end_token_is_free(P, N, eos_step):
    """Doesn't count the forward that the end token was chosen from."""
    return N if eos_step is None else min(N, eos_step - 1)


def end_not_reached(P, N, eos_step):
    """Counts up to the end token even when the limit comes first."""
    return N if eos_step is None or N == 0 else eos_step


def first_token_is_free(P, N, eos_step):
    """Takes the first new token to be there before the loop starts."""
    return max(0, N - 1)


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
    "01a": {
        prompt_changed: "wrote into the caller's list",
        end_token_ignored: "goes on after the end token",
        end_token_kept: "is not part of it",
        any_end_token_stops: "an end token in the prompt",
        last_token_alone: "is the first that differs: it should read",
        logits_in_advance: "a forward whose logits no token is chosen from",
        prompt_left_out: "the new tokens alone",
    },
    "01b": {
        prompt_costs_forwards: "reads all of the prompt at once",
        end_token_is_free: "it costs a forward",
        end_not_reached: "the loop never gets to step",
        first_token_is_free: "the first new token takes a forward",
    },
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
