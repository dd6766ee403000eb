"""What the embedded model writes; benchmarks/story_quality.py prints the whole figures."""

import pytest

from benchmarks.story_quality import measure
from support.checkpoint import TINY


@pytest.mark.parametrize("prompt", ["", "Once upon a time"])
def test_the_embedded_models_stories_end_by_themselves_and_keep_name_object_and_place(prompt):
    counts = measure(TINY, prompt, count=20)
    assert counts["ended"] == 20
    assert counts["whole"] >= 19
    assert counts["new"] == 20
