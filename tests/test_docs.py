"""What the pages say is what the code does."""

import doctest
from pathlib import Path

REPO = Path(__file__).parent.parent


def test_every_example_of_the_decoding_page_gives_what_it_shows():
    examples = doctest.testfile(
        str(REPO / "docs/decoding.md"), module_relative=False, optionflags=doctest.ELLIPSIS
    )
    assert examples.attempted > 20
    assert examples.failed == 0
