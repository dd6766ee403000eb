"""Checkers of lesson 06: finish reasons, stop strings, characters."""

import codecs
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from operator import length_hint
from random import Random

from notebooks.checks.evidence import Evidence, Failure, attempt


def check_finish_reason(answer: Callable[..., str | None]) -> Evidence:
    """Compare reasons on random runs, the shortest first."""
    random = Random(6)
    eos_ids, block_size, cases = {7, 8}, 9, []
    while len(cases) < 200:
        earlier = [random.randrange(7) for _ in range(random.randint(0, 4))]
        new_tokens = [*earlier, random.choice((0, 7, 8))]
        prompt_tokens, max_new_tokens = random.randint(1, 6), random.randint(1, 6)
        if len(new_tokens) <= max_new_tokens and prompt_tokens + len(new_tokens) <= block_size:
            cases.append((new_tokens, prompt_tokens, max_new_tokens))
    for case in sorted(cases, key=lambda case: (len(case[0]), case[1:])):
        new_tokens, prompt_tokens, max_new_tokens = case
        target = None
        if prompt_tokens + len(new_tokens) == block_size:
            target = "context_full"
        if len(new_tokens) == max_new_tokens:
            target = "max_new_tokens"
        if new_tokens[-1] in eos_ids:
            target = "eos"
        text = (
            f"new tokens {new_tokens} after a prompt of {prompt_tokens}; "
            f"eos_ids {eos_ids}, max_new_tokens {max_new_tokens}, block_size {block_size}"
        )
        limits = prompt_tokens, eos_ids, max_new_tokens, block_size
        yours = attempt(text, answer, list(new_tokens), *limits)
        if yours != target:
            raise Failure(text, repr(target), repr(yours), _why_reason(target, yours))
    return Evidence(True, f"passed: the right reason, or none, after each of {len(cases)} runs")


def _why_reason(target: str | None, yours: object) -> str:
    if target is None:
        return (
            "no end-of-text token has come, budget and room are left, and you end it: "
            "is the prompt counted as new tokens?"
        )
    if target == "eos" and yours is None:
        return "end-of-text is missed, and the text runs on: each of eos_ids ends it"
    if target == "eos":
        return "end-of-text comes first: with your reason the caller believes the text was cut off"
    if yours is None:
        return "nothing is left, and you let the loop go on: it makes one token too many"
    return "both limits are reached at once: max_new_tokens comes before context_full"


def check_hold_back(answer: Callable[..., Iterator[str]]) -> Evidence:
    """Every way to cut short texts, and random longer ones; shown text, and when."""
    cases = []
    for length in range(1, 6):
        for characters in product("12", repeat=length):
            for cut in product((False, True), repeat=length - 1):
                pieces = _cut("".join(characters), cut)
                cases += [(pieces, stop) for stop in ("12", "112", "121")]
    random = Random(6)
    for _ in range(200):
        text = "".join(random.choice(("a", "<", "<e", "<end>", "nd>", " ")) for _ in range(6))
        cases.append((_cut(text, [random.random() < 0.4 for _ in text[1:]]), "<end>"))
    cases.sort(key=lambda case: (len("".join(case[0])), len(case[0])))
    late = None
    for pieces, stop in cases:
        case = f"pieces {pieces}, stop {stop!r}"
        target = _held_back(pieces, stop)
        yours = _shown(case, answer, pieces, stop)
        if yours != target:
            failure = Failure(case, target, yours, _why_shown(pieces, stop, target, yours))
            if "".join(yours) != "".join(target):
                raise failure
            late = late or failure
    if late:  # a wrong text is told first, even if a shorter one only comes too late
        raise late
    return Evidence(
        True, f"passed: the right text at the right time for {len(cases):,} ways to cut a text"
    )


def _cut(text: str | bytes, cut: tuple[bool, ...] | list[bool]) -> list:
    edges = [0, *(i for i, here in enumerate(cut, start=1) if here), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


def _held_back(pieces: list[str], stop: str) -> list[str]:
    """What is shown after each piece and at the end, found by looking at the whole text."""
    shown, sent = [], 0
    for i in range(1, len(pieces) + 1):
        known = "".join(pieces[:i])
        if stop in known:
            return [*shown, known[sent : known.index(stop)]]
        starts = [j for j in range(len(known)) if stop.startswith(known[j:])]
        end = min(starts, default=len(known))
        shown.append(known[sent:end])
        sent = end
    return [*shown, "".join(pieces)[sent:]]


def _shown(case: str, answer: Callable[..., Iterator[str]], pieces: list, *stop: str) -> list[str]:
    """What the answer yields, in order; a Failure if it reads ahead of what it has shown."""
    shown, read = attempt(case, _collect, answer, pieces, *stop)
    for i, pieces_read in enumerate(read, start=1):
        if pieces_read > i:
            why = "a reader waits: yield what may be shown before you read the next piece"
            raise Failure(f"{case}, text {i}", f"{i} read", f"{pieces_read} pieces read", why)
    return shown


def _collect(
    answer: Callable[..., Iterator[str]], pieces: list, *stop: str
) -> tuple[list[str], list[int]]:
    """The texts, and how many pieces had been read when each of them came."""
    left = iter(pieces)
    shown, read = [], []
    for text in answer(left, *stop):
        if not isinstance(text, str):
            raise TypeError(f"it yielded {text!r}, which is no str")
        shown.append(text)
        read.append(len(pieces) - length_hint(left))
    return shown, read


def _why_shown(pieces: list[str], stop: str, target: list[str], yours: list[str]) -> str:
    wanted, got = "".join(target), "".join(yours)
    if got == wanted and len(target) != len(yours):
        return "one text for each piece, and the rest at the end if no stop string came"
    if got == wanted:
        return "the text is right but comes too late: it was decided earlier that it may be shown"
    if stop not in "".join(pieces):
        return "no stop string came, and the text that was held back for it is lost"
    if len(pieces) == 1:
        return (
            "the stop string is missed in a single piece: after a mismatch the partial progress is "
            "forgotten, but a match may have begun within it"
        )
    return "the stop string leaked piece by piece: its beginning was shown before its end came"


def check_show_characters(answer: Callable[..., Iterator[str]]) -> Evidence:
    """Every way to cut texts of one to six bytes, whole and broken."""
    texts = ["é", "😀", "a😀", "日本", "é!é", "ab"]
    whole = [text.encode() for text in texts]
    broken = [b"\xff", b"\xc3", b"\xffa", b"a\xc3", "😀".encode()[:3], b"\xc3a"]
    cases = []
    for text in whole + broken:
        for cut in product((False, True), repeat=len(text) - 1):
            cases.append(_cut(text, cut))
    cases.sort(key=lambda case: (len(b"".join(case)), len(case)))
    late = None
    for pieces in cases:
        case = f"pieces {pieces}"
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        target = [decoder.decode(piece) for piece in pieces] + [decoder.decode(b"", final=True)]
        yours = _shown(case, answer, pieces)
        if yours != target:
            failure = Failure(case, target, yours, _why_characters(target, yours))
            if "".join(yours) != "".join(target):
                raise failure
            late = late or failure
    if late:
        raise late
    return Evidence(True, f"passed: whole characters only, for {len(cases)} ways to cut a text")


def _why_characters(target: list[str], yours: list[str]) -> str:
    wanted, got = "".join(target), "".join(yours)
    if got.count("\ufffd") > wanted.count("\ufffd"):
        return "a character cut in two was shown in halves, each as U+FFFD: wait for its last byte"
    if got != wanted:
        return "a character is lost: bytes that are no character yet, or never, were dropped"
    if len(target) != len(yours):
        return "one text for each piece, and what is left at the end"
    return (
        "right in the end but too late: a byte that can't become a character is U+FFFD at once, "
        "or one bad byte holds back all that follows"
    )
