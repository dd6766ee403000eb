"""What the embedded model writes; benchmarks/story_quality.py prints the whole figures."""

import pytest

from benchmarks.story_quality import measure
from support.checkpoint import TINY


@pytest.mark.parametrize("prompt", ["", "Once upon a time"])
def test_the_embedded_models_stories_end_by_themselves_and_are_whole_and_new(prompt):
    """A tenth of the benchmark's seeds, so one fault is within its promise."""
    counts = measure(TINY, prompt, count=10)
    assert counts["ended"] >= 9
    assert counts["whole"] >= 9
    assert counts["new"] >= 9
