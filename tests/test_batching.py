"""Stage 5: a batch gives each request what it gets alone, and computes nothing that has ended."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.stage2_sampling import greedy
from stages.stage4_kv_cache import KVCache
from stages.stage5_batching import Request, Slots, generate, last_positions, pad
from support.counting import counting
from tests.helpers import Hashed, Wish, never, random_ids, random_model, wishes

REPO = Path(__file__).parent.parent


def run(model, several: list[Wish]) -> list[tuple[list[int], str | None]]:
    """Tokens and finish reason of each, from one batch."""
    results = generate(model, [wish.request(Request) for wish in several])
    return [(request.tokens, request.finish_reason) for request in results]


# ---------------------------------------------------------------- as alone


@pytest.mark.parametrize("seed", range(4))
@given(st.lists(wishes(), min_size=1, max_size=7))
@settings(max_examples=25)
def test_each_request_of_a_batch_gets_what_it_gets_alone(seed, several):
    """Any lengths, settings, limits and ends, in float64, where rounding flips no choice."""
    model = random_model(seed=seed)
    assert run(model, several) == [wish.alone(model) for wish in several]


@given(st.lists(wishes(Hashed().config), min_size=2, max_size=7))
@settings(max_examples=60)
def test_no_row_sees_a_token_or_a_position_of_another(several):
    model = Hashed()
    assert run(model, several) == [wish.alone(model) for wish in several]


def test_the_order_of_the_batch_does_not_matter():
    """vllm #17524: another order, other tokens."""
    model = random_model(seed=1)
    several = [
        Wish(tuple(random_ids(n, seed=n)[0].tolist()), 9, (("temperature", 1.5), ("seed", n)))
        for n in (1, 4, 7, 2)
    ]
    results = run(model, several)
    assert run(model, several[::-1]) == results[::-1]
    assert len({tuple(tokens) for tokens, _ in results}) == 4


def test_the_same_prompt_in_every_row_draws_different_tokens():
    """nanochat PR #201: all samples shared their first token."""
    prompt = tuple(random_ids(3)[0].tolist())
    several = [Wish(prompt, 3, (("temperature", 3.0), ("seed", seed))) for seed in range(16)]
    assert len({tokens[0] for tokens, _ in run(random_model(), several)}) > 3


def test_each_row_ends_on_its_own_and_says_why():
    """SMDM #5: only row 0 was tested for the end. One prompt is a single token, one fills up."""
    model, prompt = random_model(seed=2), tuple(random_ids(5, seed=3)[0].tolist())
    first = Wish(prompt, 9).alone(model)[0][0]
    several = [
        Wish(prompt, 9, eos=frozenset([first])),
        Wish(prompt, 3),
        Wish(tuple(random_ids(14)[0].tolist()), 9),
        Wish((4,), 1),
        Wish((4,), 0),
        Wish(tuple(random_ids(16)[0].tolist()), 5),
    ]
    results = run(model, several)
    assert results == [wish.alone(model) for wish in several]
    assert [reason for _, reason in results] == [
        "eos", "max_new_tokens", "context_full", "max_new_tokens", "max_new_tokens", "context_full",
    ]  # fmt: skip
    assert [len(tokens) for tokens, _ in results] == [1, 3, 2, 1, 0, 0]


def test_logits_of_ragged_rows_agree_with_those_of_each_row_alone():
    """Padding and neighbours change the order of sums at most, step for step."""
    counts = [[4, 1, 7], [1, 1, 1], [2, 5, 1], [1, 1, 1]]  # prefill, decode, chunks, decode
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 1e-4)):
        model = random_model(dtype=dtype)
        slots, caches = Slots(model, 3, 16), [KVCache(model, 16) for _ in range(3)]
        for step, new in enumerate(counts):
            rows = [random_ids(n, seed=10 * step + row)[0].tolist() for row, n in enumerate(new)]
            with torch.inference_mode():
                hidden = model.hidden(pad(rows, torch.device("cpu")), slots.view(slice(3), new))
                for row, (ids, cache) in enumerate(zip(rows, caches, strict=True)):
                    alone = model.hidden(torch.tensor([ids]), cache)[0]
                    assert (hidden[row, : len(ids)] - alone).abs().max() < tolerance
        assert slots.lengths == [cache.length for cache in caches]


@pytest.mark.parametrize("training", [True, False])
def test_dropout_does_not_act_and_the_callers_modes_are_left_alone(training):
    model = random_model()
    for module in (model.dropout, model.h[0].attn.dropout, model.h[0].mlp.dropout):
        module.p = 0.5
    wish = Wish((1, 2, 3), 8)
    expected = wish.alone(model)
    model.train(training)
    assert run(model, [wish, wish]) == [expected, expected]
    assert model.training == training
    assert not torch.is_inference_mode_enabled()


# ---------------------------------------------------------------- what it costs


def test_a_row_that_has_ended_is_not_computed_any_more():
    """One row of logits for each token, and every forward as wide as there are rows left."""
    model = random_model()
    several = [Wish((1, 2, 3), new) for new in (1, 2, 5, 5, 9)]
    with counting(model) as counts:
        run(model, several)
    assert counts.forwards == 9
    assert counts.head_rows == 1 + 2 + 5 + 5 + 9
    assert counts.positions == 5 * 3 + (4 + 3 + 3 + 3) + 1 + 1 + 1 + 1  # then 9 - 5 forwards of one


def test_one_request_costs_what_it_costs_in_stage_4():
    model, wish = random_model(), Wish((1, 2, 3), 8)
    with counting(model) as alone:
        wish.alone(model)
    with counting(model) as batch:
        run(model, [wish])
    assert (batch.forwards, batch.positions) == (alone.forwards, alone.positions)
    assert batch.head_rows == alone.head_rows


def test_nothing_to_do_runs_no_forward():
    model = random_model()
    with counting(model) as counts:
        assert run(model, []) == []
        assert run(model, [Wish((1,), 0)]) == [([], "max_new_tokens")]
    assert counts.forwards == 0


# ---------------------------------------------------------------- slots and their view


def test_the_mask_and_the_positions_are_those_that_the_docstring_draws():
    slots = Slots(random_model(), 2, 16)
    slots.lengths = [3, 1]
    view = slots.view(slice(2), [1, 2])
    assert view.positions(2).tolist() == [[3, 3], [1, 2]]
    row_0, row_1 = view.mask(2).int().tolist()
    assert row_0 == [[[1, 1, 1, 1], [1, 1, 1, 1]]]
    assert row_1 == [[[1, 1, 0, 0], [1, 1, 1, 0]]]


def test_a_view_is_a_slice_of_the_slots_and_pads_are_not_kept():
    model = random_model()
    slots = Slots(model, 4, 8)
    slots.lengths = [0, 6, 0, 0]
    view = slots.view(slice(1, 3), [2, 3])
    new = torch.arange(1.0, 1 + 2 * 2 * 3 * 8, dtype=torch.float64).view(2, 2, 3, 8)
    keys, values = view.append(1, new, -new)
    assert keys.data_ptr() == slots.memory[1, 0, 1].data_ptr()
    assert keys.shape == values.shape == (2, 2, 8, 8)
    assert torch.equal(slots.memory[1, 0, 1, :, 6:8], new[0, :, :2])
    assert torch.equal(slots.memory[1, 1, 2, :, :3], -new[1])
    assert slots.memory.count_nonzero() == 2 * (2 + 3) * 2 * 8  # keys and values, heads, D
    view.advance(3)
    assert slots.lengths == [0, 8, 3, 0]


def test_a_row_moves_whole_and_a_cleared_one_is_as_new():
    model = random_model()
    slots = Slots(model, 3, 8)
    with torch.inference_mode():
        model.hidden(random_ids(8, rows=3), slots.view(slice(3), [4, 8, 2]))
        broken_off = slots.view(slice(2, 3), [1])  # its forward writes and never advances
        broken_off.append(0, *torch.full((2, 1, 2, 1, 8), torch.nan, dtype=torch.float64))
    for source, target in ((2, 0), (0, 1)):
        slots.move(source, target)
        copied = slots.memory[:, :, [target, source]].nan_to_num(nan=9)
        assert torch.equal(copied[:, :, 0], copied[:, :, 1])
    assert slots.lengths == [2, 2, 2]
    for row in range(3):
        assert slots.memory[:, :, row].isnan().any()
        slots.clear(row)
    assert not slots.memory.any()
    assert slots.lengths == [0, 0, 0]


def test_slots_can_be_moved_outside_of_the_inference_mode_in_which_they_were_made():
    with torch.inference_mode():
        slots = Slots(random_model(), 2, 8)
    slots.move(1, 0)
    slots.clear(1)


@pytest.mark.parametrize("count", [0, 4])
def test_a_view_that_feeds_nothing_or_more_than_fits_is_refused(count):
    slots = Slots(random_model(), 2, 8)
    slots.lengths = [1, 5]
    with pytest.raises(ValueError, match=f"{count} new tokens after 5 cached ones.*holds 8"):
        slots.view(slice(2), [1, count])


def test_the_last_position_is_the_rows_own():
    hidden = torch.arange(6.0).view(2, 3, 1)
    assert last_positions(hidden, [1, 3]).tolist() == [[0.0], [5.0]]


# ---------------------------------------------------------------- bad calls


@pytest.mark.parametrize(
    ("prompt", "new", "message"),
    [
        ([], 5, "prompt has 0 tokens: the model reads 1 to 16"),
        ([1] * 17, 5, "prompt has 17 tokens: the model reads 1 to 16"),
        ([1], -1, "max_new_tokens is -1"),
        ([1, 32], 1, "id 32 is not a token"),
    ],
)
def test_a_request_that_cannot_run_is_refused_in_a_sentence(prompt, new, message):
    with pytest.raises(ValueError, match=message):
        generate(random_model(), [Request(prompt, new, greedy, never)])


def test_a_request_runs_once():
    """Its sampler has drawn numbers and its stop check has seen a text."""
    request = Wish((1, 2), 3).request(Request)
    generate(random_model(), [request])
    with pytest.raises(ValueError, match=r"this request has run.*make a new request"):
        generate(random_model(), [request])


def test_the_callers_prompt_is_left_as_it_was():
    prompt = [1, 2]
    generate(random_model(), [Request(prompt, 3, greedy, never)])
    assert prompt == [1, 2]


# ---------------------------------------------------------------- the file


def test_the_stage_runs_by_itself_from_any_folder(tmp_path):
    result = subprocess.run(
        [sys.executable, REPO / "stages/stage5_batching.py"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "Once upon a time" in result.stdout
    assert "54 of the token-positions fed were pads" in result.stdout
    assert "Same tokens: True" in result.stdout
    assert result.stderr == ""
