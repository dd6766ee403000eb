"""What the embedded model writes; benchmarks/story_quality.py prints the whole figures."""

import pytest

from benchmarks.story_quality import measure
from support.checkpoint import TINY


@pytest.mark.parametrize("prompt", ["", "Once upon a time"])
def test_the_embedded_models_stories_end_by_themselves_and_keep_their_name_and_object(prompt):
    counts = measure(TINY, prompt, count=10)
    assert counts["ended"] >= 9
    assert counts["new"] >= 9
    assert counts["name"] + counts["object"] <= 1
