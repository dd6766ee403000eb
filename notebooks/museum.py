"""The bug museum: wrong answers that were seen in public code, or that learners write.

Each docstring says what is wrong, and where it was seen. MUSEUM names, for each wrong answer to an
exercise, words that the checker's evidence must contain: so a learner is told the symptom.
"""

from collections.abc import Callable

MUSEUM: dict[str, dict[Callable, str]] = {}
