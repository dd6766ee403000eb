"""Reads a book of rules into parts, and refuses one that can't be told from beginning to end.

    line        One day {hero=names} met a(n) {adj} fox. {Hero.she} ran.
    parts       One| day| Join(" ") Slot(names, hero)| met| Join(" ") Article ...

The package's docstring says how rules are written; grammar.py tells and scores them.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

FALL = 0.7  # alternative r weighs 1 / r**FALL

# A word is what GPT-2's splitting makes: letters, digits or marks, with the space before them. So
# no token of a byte-level BPE reaches from one word into the next.
WORD = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[^\W\d_]+| ?\d+| ?(?:[^\w\s]|_)+|\s")
PART = re.compile(
    r" *(?P<paragraph>¶) *|(?P<space> ?)(?:{(?P<slot>[^{}]*)}|(?P<open>\[)|(?P<article>[Aa])\(n\))"
    r"| *(?P<close>\])|(?P<word>'(?:s|t|re|ve|m|ll|d)| ?[^\W\d_]+| ?\d+| ?(?:[^\w\s{}\[\]¶]|_)+)"
    r"|(?P<wrong>.+)"
)
SLOT = re.compile(r"(?:(?P<name>\w+)=)?(?P<target>\w+)(?:\.(?P<form>\w+))?")


class Slot(NamedTuple):
    """Tells one alternative of a rule, and binds it to a name unless that is empty."""

    rule: str
    name: str


class Recall(NamedTuple):
    """Tells what is bound to a name: form 0 is the text itself, 1 the first of its other forms."""

    name: str
    form: int


class Optional(NamedTuple):
    """Tells its parts, or nothing."""

    parts: tuple["Part", ...]


class Join(NamedTuple):
    """Waits for the next word, and gives it the space before it and perhaps a capital."""

    space: str
    capital: bool

    def words(self, word: str) -> tuple[str, ...]:
        word = word.removeprefix(" ")
        return (self.space + (word[:1].upper() + word[1:] if self.capital else word),)


class Article(NamedTuple):
    """Waits for the next word, and puts "a" or "an" before it."""

    def words(self, word: str) -> tuple[str, ...]:
        word = word.removeprefix(" ")
        return ("an" if word[0].lower() in "aeiou" else "a", " " + word)


Part = str | Slot | Recall | Optional | Join | Article  # str is a word
Parts = tuple[Part, ...]
Forms = tuple[Parts, ...]  # an alternative, then its other forms
Rules = dict[str, list[tuple[float, Forms]]]  # each alternative with its probability


def read_rules(book: str) -> Rules:
    """The rules of a book in their order; the first one is the whole story.

    Raises ValueError, with the rule's name, for what can't be read or can't be told.
    """
    lines = _lines(book)
    forms = {rule: columns[1:] for rule, (columns, _) in lines.items()}
    # A name is bound in one place and used in others, so all are known before a part is read.
    all_texts = " ".join(text for _, texts in lines.values() for text in texts)
    names = dict(re.findall(r"{(\w+)=(\w+)}", all_texts))
    rules: Rules = {}
    for rule, (columns, texts) in lines.items():
        alternatives = []
        for text in texts:
            told = [column.strip() for column in text.split(" / ")]
            if len(told) != len(columns):
                raise ValueError(f"rule {rule}: {text!r} has {len(told)} forms, not {len(columns)}")
            alternatives.append(tuple(_parts(rule, column, names, forms) for column in told))
        weights = [rank**-FALL for rank in range(1, len(texts) + 1)]
        shares = [weight / sum(weights) for weight in weights]
        rules[rule] = list(zip(shares, alternatives, strict=True))
    _check_rules(rules)
    for rule in dict.fromkeys(names.values()):
        _check_plain(rules, rule, rule)
    _check_names(rules, next(iter(rules)), frozenset(), frozenset())
    return rules


def _lines(book: str) -> dict[str, tuple[list[str], list[str]]]:
    """For each rule: its name and those of its forms, and the texts of its alternatives."""
    rules: dict[str, tuple[list[str], list[str]]] = {}
    rule = ""
    for line in book.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if line[0] not in " \t":
            columns = [column.strip() for column in line.split("/")]
            rule = columns[0]
            if not re.fullmatch(r"\w+", rule):
                raise ValueError(f"rule {rule}: a rule's name is one word at the margin")
            if rule in rules:
                raise ValueError(f"rule {rule} is defined twice")
            rules[rule] = columns, []
        elif not rule:
            raise ValueError(f"{line.strip()!r} belongs to no rule: a name must stand above it")
        else:
            rules[rule][1].extend(text.strip() for text in line.split("|"))
    if not rules:
        raise ValueError("the book has no rules")
    for rule, (_, texts) in rules.items():
        if not texts or not all(column.strip() for text in texts for column in text.split("/")):
            raise ValueError(f"rule {rule} has an empty alternative")
    return rules


def _parts(rule: str, text: str, names: dict[str, str], forms: dict[str, list[str]]) -> Parts:
    """Text as parts; each bracket that is open has a list of its own on the stack."""
    stack: list[list[Part]] = [[]]
    for match in PART.finditer(text):
        if match["paragraph"]:
            stack[-1] += ["\n", Join("", False)]
        elif match["word"]:
            stack[-1].append(match["word"])
        elif match["open"]:
            stack.append([Join(match["space"], False)])
        elif match["close"] and len(stack) > 1:
            parts = tuple(stack.pop())
            stack[-1].append(Optional(parts))
        elif match["article"]:
            stack[-1] += [Join(match["space"], match["article"] == "A"), Article()]
        elif match["slot"] is not None:
            slot, capital = _slot(rule, match["slot"], names, forms)
            stack[-1] += [Join(match["space"], capital), slot]
        else:
            raise ValueError(f"rule {rule}: can't read {match[0].strip()!r} in {text!r}")
    if len(stack) > 1:
        raise ValueError(f"rule {rule}: a bracket is never closed in {text!r}")
    return tuple(stack[0])


def _slot(
    rule: str, text: str, names: dict[str, str], forms: dict[str, list[str]]
) -> tuple[Slot | Recall, bool]:
    """What stands in braces, and whether it is told with a capital."""
    match = SLOT.fullmatch(text)
    if match is None:
        raise ValueError(f"rule {rule}: can't read {{{text}}}")
    name, target, form = match["name"], match["target"], match["form"]
    capital = target not in names and target not in forms
    if capital:
        target = target[0].lower() + target[1:]
    if name is None and target in names:
        known = forms.get(names[target], [])
        if form and form not in known:
            raise ValueError(f"rule {rule}: {{{text}}} asks for a form that {target} hasn't")
        return Recall(target, known.index(form) + 1 if form else 0), capital
    if target not in forms:
        raise ValueError(f"rule {rule} names {match['target']}, which doesn't exist")
    if form:
        raise ValueError(f"rule {rule}: {{{text}}} asks for a form of what isn't bound")
    if name in forms:
        raise ValueError(f"rule {rule} binds {name}, which is the name of a rule")
    return Slot(target, name or ""), capital


def _check_rules(rules: Rules) -> None:
    """Refuses a cycle, and a rule that no story reaches."""

    def visit(rule: str, above: tuple[str, ...]) -> None:
        if rule in above:
            raise ValueError(f"rule {rule} leads back to itself: {' > '.join((*above, rule))}")
        if rule not in reached:
            for part in _flat(rules[rule]):
                if isinstance(part, Slot):
                    visit(part.rule, (*above, rule))
        reached.add(rule)

    reached: set[str] = set()
    for rule in rules:  # a cycle that no story reaches is a cycle first
        visit(rule, ())
    reached = set()
    visit(next(iter(rules)), ())
    for rule in rules:
        if rule not in reached:
            raise ValueError(f"rule {rule} is used by no other")


def _check_plain(rules: Rules, rule: str, bound: str) -> None:
    """Refuses names inside a rule that is bound: its whole text is drawn before it is told."""
    for _, forms in rules[bound]:
        if not all(isinstance(part, str) for form in forms[1:] for part in form):
            raise ValueError(f"rule {bound}: a form other than the first must be plain text")
    for part in _flat(rules[rule]):
        if isinstance(part, Recall) or (isinstance(part, Slot) and part.name):
            raise ValueError(f"rule {bound} is bound as a whole, so it can't use names")
        if isinstance(part, Slot):
            _check_plain(rules, part.rule, bound)


def _check_names(
    rules: Rules, rule: str, always: frozenset[str], perhaps: frozenset[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """Names bound after a rule, on all paths and on some, from those bound before it."""

    def follow(
        parts: Parts, always: frozenset[str], perhaps: frozenset[str]
    ) -> tuple[frozenset[str], frozenset[str]]:
        for part in parts:
            if isinstance(part, Recall) and part.name not in always:
                raise ValueError(f"rule {rule} uses {part.name} where it may not be bound yet")
            if isinstance(part, Optional):
                perhaps |= follow(part.parts, always, perhaps)[1]
            if isinstance(part, Slot):
                if part.name in perhaps:
                    raise ValueError(f"rule {rule} binds {part.name}, which may be bound already")
                always, perhaps = _check_names(rules, part.rule, always, perhaps)
                if part.name:
                    always, perhaps = always | {part.name}, perhaps | {part.name}
        return always, perhaps

    ends = [follow(forms[0], always, perhaps) for _, forms in rules[rule]]
    return frozenset.intersection(*[a for a, _ in ends]), frozenset.union(*[b for _, b in ends])


def _flat(alternatives: list[tuple[float, Forms]]) -> Iterator[Part]:
    """The parts of all alternatives, those in brackets too."""
    waiting = [part for _, forms in alternatives for part in forms[0]]
    while waiting:
        part = waiting.pop(0)
        yield part
        if isinstance(part, Optional):
            waiting[:0] = part.parts
