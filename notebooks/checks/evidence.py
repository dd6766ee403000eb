"""What a checker says: not only whether an answer is right, but how one can see it."""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch


@dataclass(frozen=True, repr=False)
class Evidence:
    """The verdict of a checker. Its repr is the text, so that a notebook shows it."""

    passed: bool
    text: str

    def __repr__(self) -> str:
        return self.text


class Failure(Exception):
    """A case where an answer is wrong: raised inside a checker, shown as evidence."""

    def __init__(self, case: str, target: object, yours: object, why: str):
        super().__init__(
            f"smallest failing case: {case}\n  target  {target}\n  yours   {yours}\n  {why}"
        )


def attempt(case: str, function: Callable, *arguments: Any) -> Any:
    """Call the answer; what it raises is a Failure that names the case."""
    try:
        return function(*arguments)
    except NotImplementedError:
        raise Failure(
            case, "an answer", "none yet", "write the function, then run this again"
        ) from None
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
        raise Failure(case, "an answer", raised, "your code raised") from error


def tensor_from(answer: Callable[..., torch.Tensor], *arguments: Any) -> torch.Tensor:
    """Call an answer that has to return a tensor; use it inside `attempt`."""
    result = answer(*arguments)
    if not isinstance(result, torch.Tensor):
        raise TypeError(f"it returned {type(result).__name__}, not a tensor")
    return result


def text_from(answer: Callable[..., torch.Tensor], *arguments: Any) -> list[int]:
    """Call an answer that has to return one text, ids (1, T); use it inside `attempt`."""
    ids = tensor_from(answer, *arguments)
    if ids.dim() != 2 or len(ids) != 1:
        raise ValueError(f"it returned shape {tuple(ids.shape)}, not one text, (1, T)")
    return ids[0].tolist()


def number_from(answer: Callable[..., Real], *arguments: Any) -> Real:
    """Call an answer that has to return a number; use it inside `attempt`."""
    result = answer(*arguments)
    if not isinstance(result, Real):
        raise TypeError(f"it returned {type(result).__name__}, not a number")
    return result


def judge_test(case: str, right: bool, why: str, test: Callable[..., object], given: Any) -> None:
    """Ask a learner's test whether what is given is right; a Failure if it says otherwise.

    A test that raises has found a broken one, too; on a right one it may not.
    """
    try:
        yours = bool(test(given))
    except NotImplementedError:
        raise Failure(case, right, "none yet", "write the test, then run this again") from None
    except Exception as error:
        if right:
            raised = f"{type(error).__name__}: {error}"
            raise Failure(case, right, raised, "your test raised") from error
        yours = False
    if yours != right:
        raise Failure(case, right, yours, why)
