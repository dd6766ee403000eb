"""The corpus: sound stories, choices that can be read back, and a check that sees each fault."""

import math
import random
import re
import statistics
import time
from dataclasses import replace

import pytest

from support import corpus

# These words occur in no fixed text of a skeleton, so each occurrence in a story is a slot.
NORA = {"name": "Nora", "object": "kite", "place": "harbour"}


def sample(count: int, seed: int = 0) -> list[corpus.Choices]:
    rng = random.Random(seed)
    return [corpus.draw(rng) for _ in range(count)]


def one_of_each_skeleton() -> list[corpus.Choices]:
    drawn = {choices.skeleton: replace(choices, **NORA) for choices in sample(1000)}  # type: ignore[arg-type]
    assert drawn.keys() == corpus.SKELETONS.keys()
    return list(drawn.values())


def every_phrasing() -> list[corpus.Choices]:
    """Stories that together use each phrasing of each position of each skeleton."""
    found = []
    for skeleton, positions in corpus.SKELETONS.items():
        for index in range(max(map(len, positions))):
            phrasings = tuple(min(index, len(phrases) - 1) for phrases in positions)
            chosen = [phrases[k] for phrases, k in zip(positions, phrasings, strict=True)]
            words = tuple(corpus.LISTS[slot][-1] for slot in drawn_slots(" ".join(chosen)))
            found.append(corpus.Choices(skeleton, **NORA, phrasings=phrasings, words=words))
    return found


def drawn_slots(text: str) -> list[str]:
    return [slot for slot in re.findall(r"{(\w+)}", text) if slot in corpus.LISTS.keys() - NORA]


def replaced_one_at_a_time(text: str, old: str, new: str) -> list[str]:
    places = [match.span() for match in re.finditer(rf"\b{old}\b", text)]
    return [text[:start] + new + text[end:] for start, end in places]


def test_the_same_seed_tells_the_same_stories_and_another_seed_tells_others():
    assert corpus.stories(50, seed=3) == corpus.stories(50, seed=3)
    assert corpus.stories(50, seed=3) == corpus.stories(80, seed=3)[:50]
    assert not set(corpus.stories(50, seed=3)) & set(corpus.stories(50, seed=4))


def test_a_seed_tells_the_same_story_on_every_python_version():
    """random() is stable and choice() is not; these numbers were drawn once and written down."""
    choices = corpus.draw(random.Random(0))
    order = list(corpus.SKELETONS), *(corpus.LISTS[slot] for slot in NORA)
    drawn = choices.skeleton, choices.name, choices.object, choices.place
    firsts = [0.8444218515250481, 0.7579544029403025, 0.420571580830845, 0.25891675029296335]
    expected = [options[int(u * len(options))] for u, options in zip(firsts, order, strict=True)]
    assert list(drawn) == expected


def test_thousands_of_stories_are_sound():
    assert [text for text in corpus.stories(4000, seed=1) if corpus.check(text)] == []


def test_the_choices_are_read_back_from_the_text():
    for choices in sample(4000) + every_phrasing():
        assert corpus.parse(corpus.tell(choices)) == choices


def test_a_story_can_be_read_in_one_way_only():
    """Otherwise two choices would share a text, and the entropy would be too high as a floor."""
    for choices in sample(1500, seed=2) + every_phrasing():
        assert len(corpus.readings(corpus.tell(choices))) == 1


def test_the_entropy_is_the_average_surprise_of_a_story():
    surprises = []
    for choices in sample(6000, seed=5):
        positions = corpus.SKELETONS[choices.skeleton]
        chosen = [phrases[k] for phrases, k in zip(positions, choices.phrasings, strict=True)]
        options = [len(corpus.SKELETONS), *map(len, positions)]
        options += [len(corpus.LISTS[slot]) for slot in [*NORA, *drawn_slots(" ".join(chosen))]]
        surprises.append(sum(math.log(n) for n in options))
    error = statistics.stdev(surprises) / math.sqrt(len(surprises))
    assert statistics.mean(surprises) == pytest.approx(corpus.entropy(), abs=4 * error)
    assert error < 0.05


@pytest.mark.parametrize(
    ("kind", "other"), [("name", "Kate"), ("name", "Tom"), ("object", "drum"), ("place", "castle")]
)
def test_one_changed_word_is_blamed_on_its_slot(kind, other):
    for choices in one_of_each_skeleton():
        for text in replaced_one_at_a_time(corpus.tell(choices), NORA[kind], other):
            assert corpus.check(text) == [kind], text


def test_two_changed_words_are_both_reported():
    text = corpus.tell(one_of_each_skeleton()[0])
    text = text.replace("kite", "drum", 1).replace("harbour", "castle", 1)
    assert corpus.check(text) == ["object", "place"]


def test_a_pronoun_that_disagrees_with_the_name_is_a_fault_of_the_name():
    seen = 0
    for choices in every_phrasing():
        hers = re.split(r"\b", corpus.tell(choices))
        his = re.split(r"\b", corpus.tell(replace(choices, name="Tom")))
        for at, (old, new) in enumerate(zip(hers, his, strict=True)):
            if old != new and new != "Tom":
                assert corpus.check("".join([*hers[:at], new, *hers[at + 1 :]])) == ["name"]
                seen += 1
    assert seen > 20


def test_a_word_of_no_list_is_a_fault_of_the_grammar():
    for choices in one_of_each_skeleton():
        for word in NORA.values():
            assert corpus.check(corpus.tell(choices).replace(word, "Grommet")) == ["grammar"]


def test_a_deleted_word_is_a_fault_of_the_grammar():
    for choices in one_of_each_skeleton():
        words = corpus.tell(choices).split(" ")
        for at in range(len(words)):
            assert corpus.check(" ".join(words[:at] + words[at + 1 :])) == ["grammar"]


def test_swapped_sentences_are_a_fault_of_the_grammar():
    for choices in one_of_each_skeleton():
        first, second, rest = re.split(r"(?<=[.!?]) ", corpus.tell(choices), maxsplit=2)
        assert corpus.check(" ".join([second, first, rest])) == ["grammar"]


def test_a_story_cut_anywhere_or_told_twice_is_a_fault_of_the_grammar():
    for choices in one_of_each_skeleton():
        text = corpus.tell(choices)
        for end in range(len(text)):
            assert corpus.check(text[:end]) == ["grammar"]
        for longer in (text + " ", text + "\n", " " + text, text + " " + text, text + "\n" + text):
            assert corpus.check(longer) == ["grammar"]
        assert corpus.check(text.replace("\n", " ")) == ["grammar"]
        assert corpus.check(text.replace("\n", "\n\n")) == ["grammar"]


@pytest.mark.parametrize("text", ["", " ", "\n", "Once upon a time", "{name}", "\x00", "Hello."])
def test_what_is_no_story_is_a_fault_of_the_grammar(text):
    assert corpus.check(text) == ["grammar"]
    with pytest.raises(ValueError, match="no skeleton"):
        corpus.parse(text)


def test_random_and_huge_texts_are_refused_quickly():
    rng = random.Random(7)
    noise = ["".join(chr(rng.randrange(32, 127)) for _ in range(600)) for _ in range(200)]
    story = corpus.stories(1, seed=0)[0]
    huge = ["a" * 10**6, "Once upon a time, " + "a" * 10**6, (story + " ") * 1000, "\n" * 10**5]
    start = time.perf_counter()
    assert all(corpus.check(text) == ["grammar"] for text in noise + huge)
    assert time.perf_counter() - start < 2


def test_parse_refuses_a_story_that_forgets_its_name():
    text = corpus.tell(one_of_each_skeleton()[0]).replace("Nora", "Kate", 1)
    with pytest.raises(ValueError, match="check"):
        corpus.parse(text)


@pytest.mark.parametrize(("slot", "least"), [("name", 4), ("object", 4), ("place", 4)])
def test_every_story_mentions_its_words_often_whatever_is_chosen(slot, least):
    for skeleton, positions in corpus.SKELETONS.items():
        fewest = sum(min(text.count(f"{{{slot}}}") for text in phrases) for phrases in positions)
        assert fewest >= least, skeleton


def test_every_phrasing_is_plain_text_and_two_or_three_paragraphs_result():
    for choices in every_phrasing():
        text = corpus.tell(choices)
        assert re.fullmatch(r"[A-Za-z ,.!?'\"\n-]+", text), text
        assert "\n\n" not in text
        assert "  " not in text
        assert text.count('"') % 2 == 0
        assert text.count("\n") in (1, 2)
        assert 300 < len(text) < 640


def test_no_article_depends_on_a_word_that_is_drawn():
    for slot in ("object", "adj", "weather"):
        assert [word for word in corpus.LISTS[slot] if word[0] in "aeiou"] == []
    for positions in corpus.SKELETONS.values():
        assert not re.search(r"\b[Aa]n \{", str(positions))


def test_no_list_repeats_a_word_and_names_are_half_girls_half_boys():
    for words in [*corpus.LISTS.values(), *corpus.SKELETONS.values()]:
        assert len(words) - len(set(words)) in (0, words.count(corpus.PARAGRAPH) - 1)
    assert len(corpus.GIRLS) == len(corpus.BOYS)


def test_girls_are_she_and_boys_are_he():
    pairs = set()
    for choices in every_phrasing():
        hers = corpus.tell(choices).split()
        his = corpus.tell(replace(choices, name="Tom")).split()
        pairs |= {(a.strip('.,!?"'), b.strip('.,!?"')) for a, b in zip(hers, his, strict=True)}
    changed = {(a.lower(), b.lower()) for a, b in pairs if a != b and "Tom" not in b}
    assert changed == {("she", "he"), ("her", "his"), ("her", "him"), ("girl", "boy")}


def test_about_half_of_the_stories_begin_once_upon_a_time():
    begun = [text.startswith("Once upon a time") for text in corpus.stories(4000, seed=6)]
    assert statistics.mean(begun) == pytest.approx(0.5, abs=0.04)
