"""The stories: the rules (stories.txt), what reads them (rules.py), what tells them (grammar.py).

    from corpus import stories, story_grammar
    stories(3, seed=0)                              # three stories, the same ones everywhere
    story_grammar().log_probability(text)           # ln p in nats, -inf if it is no story
    story_grammar().next_words("Once upon a time,")  # the true distribution of the next word
    story_grammar().check(text)                     # whole or not, and the first wrong word
    story_grammar().entropy()                       # nats a story

To tell other stories, or stories in another language, write a book and give it to `Grammar`:

    # A line that begins so is a note.
    story
        One day {hero=names} met a(n) {animal=animals}. {Hero.she} said [very politely]: "{Animal}!"
        The {animals} slept. ¶ Nobody knows why.
    names / she
        Ada / she | Nora / she
        Tom / he
    animals
        owl | fox | grey mouse

- A rule's name is one word at the margin; its alternatives stand below it, indented, one a line or
  between bars. The first rule is the whole story.
- The order is the weight: alternative r has weight 1 / r^0.7, so write the most usual one first.
- `{animals}` tells one alternative of that rule, drawn anew each time.
- `{animal=animals}` draws one and binds it: from there on `{animal}` tells the same one. A name is
  bound once in a story, and before it is used, whatever is drawn.
- `names / she` gives each alternative a second form, `Ada / she`, told by `{hero.she}`.
- A capital in braces, `{Animal}` or `{Hero.she}`, tells it with a capital.
- `[very politely]` is told with probability 0.4, and the space before it goes with it.
- `a(n)` becomes "a" or "an", as the next word begins. `¶` begins a paragraph.
- No rule may lead back to itself. A word belongs in one alternative: `{animals}s` is two words to
  `next_words`, though it is scored as it should be.

A book that breaks a rule is refused when it is read, in one sentence with the rule's name.
"""

from functools import cache
from pathlib import Path
from random import Random

from corpus.grammar import Entropy, Grammar, Verdict

__all__ = ["Entropy", "Grammar", "Verdict", "stories", "story_grammar"]


@cache
def story_grammar() -> Grammar:
    """The grammar of stories.txt, read once."""
    return Grammar(Path(__file__).with_name("stories.txt").read_text(encoding="utf-8"))


def stories(count: int, seed: int) -> list[str]:
    """Return `count` stories; the same seed gives the same ones, and a longer list begins alike."""
    rng = Random(seed)
    return [story_grammar().sample(rng) for _ in range(count)]
