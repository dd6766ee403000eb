"""Checkers of lesson 12: tests that find planted bugs, and settings in another library's words."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from types import ModuleType

import torch

from notebooks import suspect
from notebooks.checks.evidence import Evidence, Failure, attempt
from stages.stage2_sampling import Sampler

# The ten bugs of notebooks/suspect.py: where each shows, what stands there, and what is right.
# Whoever reads on has the solution of exercise 12a.
BUGS = {
    "keep_top_k, on a tie": (
        "dropped = (logits < logits.topk(k).values[-1]).nonzero().flatten()",
        "dropped = logits.argsort(descending=True, stable=True)[k:]",
    ),
    "keep_top_p, at the token that crosses p": ("ids[ends > p]", "ids[ends - probs >= p]"),
    "pick, when some ids have no share": ("return place", "return int(kept[place])"),
    "Rule, over several tokens": ("Random(self.seed).random()", "self.random.random()"),
    "Stop, when a sequence begins twice": (
        "if self.recent != self.sequence[: len(self.recent)]:\n            self.recent.clear()",
        "while self.recent != self.sequence[: len(self.recent)]:\n            self.recent.pop(0)",
    ),
    "Cache, from the second forward on": (
        "return torch.arange(T)",
        "return torch.arange(self.length, self.length + T)",
    ),
    "Cache, when several tokens come after others": (
        ".tril()",
        ".tril(diagonal=self.length)",
    ),
    "generate, for whoever uses the prompt again": (
        "ids, new = prompt, []",
        "ids, new = list(prompt), []",
    ),
    "generate_batch, when prompts differ in length": (
        "last = [T - 1 for b in running]",
        "last = [len(texts[b]) - 1 for b in running]",
    ),
    "generate_batch, when texts end differently": ("stops[0](token)", "stops[b](token)"),
}
ENOUGH = 8


def repaired(but: str | None = None) -> ModuleType:
    """notebooks/suspect.py without its bugs, or with the one named by a key of BUGS."""
    source = Path(suspect.__file__).read_text(encoding="utf-8")
    for where, (planted, right) in BUGS.items():
        if where != but:
            source = source.replace(planted, right)
    module = ModuleType("suspect")
    exec(compile(source, "suspect.py", "exec"), module.__dict__)
    return module


def check_examine(answer: Callable[[ModuleType], None]) -> Evidence:
    """Run the learner's tests on the clean file, then on files with one of the bugs each."""
    case = "a file without bugs"
    try:
        answer(repaired())
    except NotImplementedError:
        raise Failure(case, "tests", "none yet", "write them, then run this again") from None
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
        raise Failure(case, "no error", raised, "your tests reject the clean file") from error
    missed = []
    for where in BUGS:
        try:
            answer(repaired(but=where))
        except Exception:  # an assert that fails, or what a bug makes Python raise
            continue
        missed.append(where)
    found = len(BUGS) - len(missed)
    hints = "".join(f"\n  missed: {where}" for where in missed)
    if found < ENOUGH:
        raise Failure(
            "ten files with one bug each", f"at least {ENOUGH} caught", f"{found} caught",
            f"your tests accept the clean file, as they should{hints}",
        )  # fmt: skip
    return Evidence(
        True,
        f"passed: your tests accept the clean file and catch {found} of {len(BUGS)} bugs{hints}\n"
        f"  cost: {1 + len(BUGS)} runs of your tests",
    )


def what_generate_does(
    settings: dict, logits: torch.Tensor, prompt_tokens: int
) -> tuple[torch.Tensor, int]:
    """What `generate` of transformers 5.24 makes of these arguments: logits (1, V) to (1, V) and N.

    The probabilities of the next token, and how many tokens are made if none ends the text. Errors
    are ValueErrors, as there. A test compares this with the library.
    """
    known = {"do_sample", "temperature", "top_k", "top_p", "min_p", "max_new_tokens", "max_length"}
    if set(settings) - known:
        raise ValueError(f"not used here: {', '.join(sorted(set(settings) - known))}")
    given = {name: value for name, value in settings.items() if value is not None}
    new = given.get("max_new_tokens")
    if new is None:
        new = given["max_length"] - prompt_tokens if "max_length" in given else 20
    if new < 1:
        raise ValueError("there is no new token to make")
    if not given.get("do_sample", False):
        return torch.zeros_like(logits).scatter_(1, logits.argmax(1, keepdim=True), 1), new
    if given.get("temperature", 1.0) <= 0:
        raise ValueError("temperature has to be above 0")
    sampler = Sampler(
        temperature=given.get("temperature", 1.0),
        top_k=settings.get("top_k", 50),  # 50 if nothing is said; None and 0 are off
        top_p=given.get("top_p", 1.0),
        min_p=given.get("min_p", 0.0),
    )
    return sampler.filter(logits).softmax(dim=1), new


Settings = Callable[[float, int | None, float, float, int], dict]

# temperature, top_k, top_p, min_p, max_new_tokens
SETTINGS = [
    (0, None, 1.0, 0.0, 12),
    (1.0, None, 1.0, 0.0, 12),
    (0.7, None, 1.0, 0.0, 30),
    (1.0, 3, 1.0, 0.0, 12),
    (1.0, None, 0.8, 0.0, 12),
    (1.0, None, 1.0, 0.1, 20),
    (2.0, 60, 0.95, 0.01, 25),
    (0, 5, 0.9, 0.1, 12),
]


def check_transformers_settings(answer: Settings) -> Evidence:
    """Compare the distribution and the number of tokens that the arguments lead to with ours."""
    random = Random(12)
    for case_number, settings in enumerate(SETTINGS):
        temperature, top_k, top_p, min_p, new = settings
        case = "temperature {}, top_k {}, top_p {}, min_p {}, max_new_tokens {}".format(*settings)
        generator = torch.Generator().manual_seed(case_number)
        logits = 2 * torch.randn(1, 80, dtype=torch.float64, generator=generator)
        sampler = Sampler(temperature, top_k, top_p, min_p)
        if temperature == 0:
            target = torch.zeros_like(logits).scatter_(1, logits.argmax(1, keepdim=True), 1)
        else:
            target = sampler.filter(logits).softmax(dim=1)
        yours = attempt(case, _dict_from, answer, *settings)
        prompt_tokens = random.randint(2, 9)
        probs, made = attempt(
            f"{case}: generate(**{yours})", what_generate_does, yours, logits, prompt_tokens
        )
        if made != new:
            why = "max_length counts the prompt, too, and without either it is 20 new tokens"
            raise Failure(f"{case}: {yours}", f"{new} new tokens", f"{made} new tokens", why)
        if not torch.allclose(probs, target):
            shown = [f"{int((p > 0).sum())} tokens possible, the likeliest with {p.max():.3f}"
                     for p in (target, probs)]  # fmt: skip
            raise Failure(f"{case}: {yours}", *shown, _why_settings(yours, temperature, probs))
    return Evidence(
        True,
        f"passed: {len(SETTINGS)} settings, each with the same distribution and number of tokens\n"
        "  cost: no forward, a library's defaults read once",
    )


def _dict_from(answer: Settings, *arguments: object) -> dict:
    settings = answer(*arguments)
    if not isinstance(settings, dict):
        raise TypeError(f"it returned {type(settings).__name__}, not a dict")
    for name, value in settings.items():
        number = value is None or isinstance(value, int | float)
        if not isinstance(name, str) or not number or value != value:
            raise TypeError(f"{name!r} is {value!r}: names with numbers, bools or None")
    return settings


def _why_settings(yours: dict, temperature: float, probs: torch.Tensor) -> str:
    if temperature and int((probs > 0).sum()) == 1 and not yours.get("do_sample"):
        return "without do_sample=True the choice is greedy, whatever the temperature"
    if temperature == 0:
        return "temperature 0 is greedy: there it is do_sample=False"
    if int((probs > 0).sum()) == 50 and "top_k" not in yours:
        return "50 tokens: that is the default of top_k, if nothing is said; None or 0 is off"
    return "one of the filters is not what was asked for"
