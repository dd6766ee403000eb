"""The mechanism: tells stories by a book of rules, and knows the probability of any text.

A hypothesis is one way in which a story can go on: what is still to be told, and what is bound.
Telling a story and scoring one both replace the first thing to be told until it is a word; a story
draws one replacement, a score follows all of them, and adds up hypotheses that have become equal:

    to come                                 bound
    {hero=names} sat down. {Hero.she} ...   nothing        replace the first thing by its choices
    Nora sat down. {Hero.she} ...           hero is Nora   a word: is it what the text says?
    sat down. {Hero.she} ...                hero is Nora   ... the next word, until nothing is left
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from corpus.rules import WORD, Article, Forms, Join, Optional, Parts, Recall, Slot, read_rules

OPTIONAL = 0.4  # the probability that a part in brackets is told

Bound = tuple[tuple[str, Forms], ...]  # sorted by name
Hypothesis = tuple[Parts, Bound]


class Verdict(NamedTuple):
    """What `check` found: where the first wrong word begins, and what could have stood there.

    For a whole story `at` is its length and `word` is empty. A `word` that is empty in a text that
    isn't whole means that the text ends too early.
    """

    whole: bool
    at: int
    word: str
    expected: dict[str, float]


class Entropy(NamedTuple):
    """Nats a story, and the standard error of that figure."""

    nats: float
    error: float


class Grammar:
    """A book of rules, read once.

    Raises ValueError, with the rule's name, for a book that can't be told from beginning to end.
    """

    def __init__(self, book: str) -> None:
        self._rules = read_rules(book)
        self._story = Slot(next(iter(self._rules)), "")
        self._begin: Hypothesis = ((Join("", False), self._story), ())
        self._bindable: dict[str, list[tuple[float, Forms]]] = {}

    def sample(self, rng: Random) -> str:
        """One story. Draws with rng.random() alone, so a seed tells the same on any platform."""
        return self._draw(rng)[0]

    def log_probability(self, text: str) -> float:
        """ln p of this text, in nats, summed over all ways to tell it; -inf if it is no story."""
        end = self.forward(text).get(len(text), {})
        return _sum([p for (parts, _), p in self._words(end) if not parts])

    def next_words(self, beginning: str) -> dict[str, float]:
        """The true distribution of what comes after a beginning, the likeliest first.

        A word is letters, digits or marks with the space before them, a newline is a word, and ""
        is the end. A beginning that can end with a whole word is taken to end with it; else the
        rest of its last word stands for that word. Empty if no story begins so.
        """
        done = self.forward(beginning)
        found: dict[str, list[float]] = defaultdict(list)
        for at in [len(beginning)] if len(beginning) in done else done:
            told = beginning[at:]
            for (parts, _), p in self._words(done[at]):
                word = str(parts[0]) if parts else ""
                if word.startswith(told):
                    found[word[len(told) :]].append(p)
        total = _sum([p for each in found.values() for p in each])
        shares = {word: math.exp(_sum(each) - total) for word, each in found.items()}
        return dict(sorted(shares.items(), key=lambda pair: (-pair[1], pair[0])))

    def check(self, text: str) -> Verdict:
        """Whether this is one of the stories, and if not, the first word that no story has there.

        A text that breaks off inside a word has its fault at the beginning of that word.
        """
        words = {match.start(): match[0] for match in WORD.finditer(text)} | {len(text): ""}
        at = max(place for place in self.forward(text) if place in words)
        expected = self.next_words(text[:at])
        return Verdict(at == len(text) and "" in expected, at, words[at], expected)

    def entropy(self, samples: int = 200, seed: int = 0) -> Entropy:
        """Nats a story: the loss that no model can get below.

        The entropy of the draws is an exact sum. Where two draws make the same text it is too high,
        by ln p(text) - ln p(draws) on average: that difference is sampled, so its error is small.
        """
        rng = Random(seed)
        drawn = [self._draw(rng) for _ in range(samples)]
        gaps = [self.log_probability(text) - draws for text, draws in drawn]
        error = statistics.stdev(gaps) / math.sqrt(samples)
        return Entropy(self._nats((self._story,)) - statistics.mean(gaps), error)

    def forward(self, text: str) -> dict[int, dict[Hypothesis, float]]:
        """For each place in the text where words can end: the hypotheses, with their ln p."""
        ahead: dict[int, dict[Hypothesis, list[float]]] = {0: {self._begin: [0.0]}}
        done: dict[int, dict[Hypothesis, float]] = {}
        while ahead:
            at = min(ahead)
            done[at] = {hypothesis: _sum(ways) for hypothesis, ways in ahead.pop(at).items()}
            for (parts, bound), p in self._words(done[at]):
                if parts and text.startswith(str(parts[0]), at):
                    after = ahead.setdefault(at + len(str(parts[0])), {})
                    after.setdefault((parts[1:], bound), []).append(p)
        return done

    def _draw(self, rng: Random) -> tuple[str, float]:
        """A story, and ln p of the draws that made it."""
        parts, bound = self._begin
        words: list[str] = []
        draws = 0.0
        while parts:
            if isinstance(parts[0], str):
                words.append(parts[0])
                parts = parts[1:]
                continue
            p, parts, bound = _pick(rng, self._replace(parts, bound))
            draws += math.log(p)
        return "".join(words), draws

    def _words(self, hypotheses: dict[Hypothesis, float]) -> Iterator[tuple[Hypothesis, float]]:
        """The hypotheses with their first part replaced until it is a word, or nothing is left."""
        waiting = list(hypotheses.items())
        while waiting:
            (parts, bound), p = waiting.pop()
            if not parts or isinstance(parts[0], str):
                yield (parts, bound), p
            else:
                choices = self._replace(parts, bound)
                waiting += [((more, names), p + math.log(q)) for q, more, names in choices]

    def _replace(self, parts: Parts, bound: Bound) -> list[tuple[float, Parts, Bound]]:
        """All that the first part can be replaced by: probability, what is to come, what is bound.

        The first part is no word.
        """
        first, rest = parts[0], parts[1:]
        if isinstance(first, Slot) and first.name:
            return [
                (p, forms[0] + rest, tuple(sorted([*bound, (first.name, forms)])))
                for p, forms in self._whole(first.rule)
            ]
        if isinstance(first, Slot):
            return [(p, forms[0] + rest, bound) for p, forms in self._rules[first.rule]]
        if isinstance(first, Recall):
            return [(1.0, dict(bound)[first.name][first.form] + rest, bound)]
        if isinstance(first, Optional):
            return [(OPTIONAL, first.parts + rest, bound), (1 - OPTIONAL, rest, bound)]
        # A join or an article waits until a word stands behind it.
        if not rest or rest[0] == "\n":
            return [(1.0, rest, bound)]
        if isinstance(rest[0], str) and isinstance(first, Join | Article):
            return [(1.0, first.words(rest[0]) + rest[1:], bound)]
        return [(p, (first, *more), names) for p, more, names in self._replace(rest, bound)]

    def _whole(self, rule: str) -> list[tuple[float, Forms]]:
        """All that a rule can bind, each text in full."""
        if rule not in self._bindable:
            told = [
                (p * math.exp(q), (words, *forms[1:]))
                for p, forms in self._rules[rule]
                for words, q in self._texts(forms[0])
            ]
            self._bindable[rule] = told
        return self._bindable[rule]

    def _texts(self, parts: Parts) -> Iterator[tuple[Parts, float]]:
        """Each text that these parts can become, word by word, and its ln p."""
        for (first, _), p in self._words({(parts, ()): 0.0}):
            if not first:
                yield (), p
            else:
                yield from (((first[0], *more), p + q) for more, q in self._texts(first[1:]))

    def _nats(self, parts: Parts) -> float:
        """Entropy of the draws that tell these parts, in nats."""
        nats = 0.0
        for part in parts:
            if isinstance(part, Slot):
                for p, forms in self._rules[part.rule]:
                    nats += p * (self._nats(forms[0]) - math.log(p))
            elif isinstance(part, Optional):
                p = OPTIONAL
                nats += p * (self._nats(part.parts) - math.log(p)) - (1 - p) * math.log(1 - p)
        return nats


def _pick(rng: Random, choices: list[tuple[float, Parts, Bound]]) -> tuple[float, Parts, Bound]:
    """One of the choices, as probable as it says; where there is no choice, nothing is drawn."""
    left = rng.random() if len(choices) > 1 else 0.0
    for choice in choices:
        left -= choice[0]
        if left < 0:
            return choice
    return choices[-1]  # rounding left a rest


def _sum(logs: list[float]) -> float:
    """ln of the sum of what these are the ln of; no probability is too small for it."""
    if len(logs) < 2:
        return logs[0] if logs else -math.inf
    highest = max(logs)
    return highest + math.log(sum(math.exp(p - highest) for p in logs))
