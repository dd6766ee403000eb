"""The exercises' checkers: `check("03a", temperature)` in a notebook, or from the shell

python -m notebooks.checks 03a my_file.py
"""

from collections.abc import Callable

from notebooks.checks import (
    lesson01,
    lesson02,
    lesson03,
    lesson04,
    lesson05,
    lesson06,
    lesson07,
    lesson08,
    lesson09,
    lesson10,
    lesson11,
    lesson12,
)
from notebooks.checks.evidence import Evidence, Failure

# Exercise: the name that the answer has, and the checker, which returns or raises.
EXERCISES: dict[str, tuple[str, Callable[..., Evidence]]] = {
    "01a": ("generate_ids", lesson01.check_generate_ids),
    "01b": ("count_forwards", lesson01.check_count_forwards),
    "02a": ("sentence_probabilities", lesson02.check_sentence_probabilities),
    "02b": ("reads_last_row", lesson02.check_reads_last_row),
    "02c": ("logits_of_last_row", lesson02.check_logits_of_last_row),
    "03a": ("temperature", lesson03.check_temperature),
    "03b": ("ratio_at", lesson03.check_ratio_at),
    "04a": ("keep_top_k", lesson04.check_keep_top_k),
    "04b": ("keep_top_p", lesson04.check_keep_top_p),
    "04c": ("order_matters", lesson04.check_order_matters),
    "05a": ("token_at", lesson05.check_token_at),
    "05b": ("replays", lesson05.check_replays),
    "05c": ("choose_for", lesson05.check_choose_for),
    "06a": ("finish_reason", lesson06.check_finish_reason),
    "06b": ("hold_back", lesson06.check_hold_back),
    "06c": ("show_characters", lesson06.check_show_characters),
    "07a": ("token_positions", lesson07.check_token_positions),
    "07b": ("lean_generate", lesson07.check_lean_generate),
    "07c": ("time_ratio", lesson07.check_time_ratio),
    "08a": ("LearnersCache", lesson08.check_learners_cache),
    "08b": ("cached_attention", lesson08.check_cached_attention),
    "08c": ("cache_is_right", lesson08.check_cache_is_right),
    "09a": ("chunked_prefill", lesson09.check_chunked_prefill),
    "09b": ("cached_crop", lesson09.check_cached_crop),
    "09c": ("crop_cost", lesson09.check_crop_cost),
    "10a": ("batched_last_logits", lesson10.check_batched_last_logits),
    "10b": ("generate_rows", lesson10.check_generate_rows),
    "10c": ("choose_rows", lesson10.check_choose_rows),
    "11a": ("next_step", lesson11.check_next_step),
    "11b": ("cancel_request", lesson11.check_cancel_request),
    "11c": ("leaks_no_slot", lesson11.check_leaks_no_slot),
    "12a": ("examine", lesson12.check_examine),
    "12b": ("transformers_settings", lesson12.check_transformers_settings),
}


def check(exercise: str, answer: object) -> Evidence:
    """Hold an answer against fresh random cases; the evidence says what it got wrong, or its cost.

    Raises ValueError for an exercise that doesn't exist.
    """
    if exercise not in EXERCISES:
        raise ValueError(f"there is no exercise {exercise!r}: these are {', '.join(EXERCISES)}")
    name, checker = EXERCISES[exercise]
    if not callable(answer):
        return Evidence(False, f"not yet; hand over {name} itself, not a {type(answer).__name__}")
    try:
        return checker(answer)
    except Failure as failure:
        return Evidence(False, f"not yet; {failure}")
