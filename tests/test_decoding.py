"""The decoding rules of stage 2: filters, the draw, and the sampler that joins them."""

import math
from collections import Counter
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from stages.stage2_sampling import (
    Sampler,
    apply_min_p,
    apply_temperature,
    apply_top_k,
    apply_top_p,
    each_row,
    greedy,
    pick,
)

B02 = torch.tensor([[0.5, -1.2, 3.1, 0.8, -0.3, 2.7, -0.9, 1.4]])

numbers = st.floats(-30, 30, width=32)
rows = st.lists(numbers, min_size=1, max_size=20)
# Few distinct values, so that ties are common.
tied_rows = st.lists(st.sampled_from([-2.0, -1.0, 0.0, 1.0]), min_size=1, max_size=12)


def of_probs(*probs: float) -> torch.Tensor:
    return torch.tensor([probs], dtype=torch.float64).log()


def kept(logits: torch.Tensor) -> list[int]:
    return logits[0].isfinite().nonzero().flatten().tolist()


# ---------------------------------------------------------------- temperature


def test_temperature_zero_is_the_argmax_and_draws_nothing():
    """nanoGPT #738: temperature 0 divided by zero; PR #546: it always gave token 0."""
    sampler = Sampler(temperature=0, seed=1)
    state = sampler.random.getstate()
    assert sampler(B02).tolist() == [[2]]
    assert sampler.random.getstate() == state


def test_greedy_takes_the_lowest_id_on_a_tie():
    logits = torch.tensor([[1.0, 7.0, 7.0], [5.0, 5.0, 5.0]])
    assert greedy(logits).tolist() == [[1], [0]]
    assert Sampler(temperature=0)(logits[:1]).tolist() == [[1]]


@given(rows, st.floats(0.05, 20))
def test_temperature_raises_ratios_to_the_power_of_its_inverse(row, temperature):
    logits = torch.tensor([row], dtype=torch.float64)
    scaled = apply_temperature(logits, temperature)
    ratios, expected = scaled - scaled[:, :1], (logits - logits[:, :1]) / temperature
    assert torch.allclose(ratios, expected, atol=1e-9)


@pytest.mark.parametrize("temperature", [1e-3, 1e-40, 1e-300, 5e-324])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_no_temperature_is_too_small_to_divide_by(temperature, dtype):
    scaled = apply_temperature((B02 * 100).to(dtype), temperature)
    assert not scaled.isnan().any()
    assert scaled.argmax() == 2
    assert Sampler(temperature)(B02).item() == 2


def test_a_high_temperature_is_nearly_uniform():
    assert apply_temperature(B02, 1e30).softmax(-1) == pytest.approx(torch.full((1, 8), 1 / 8))


# ---------------------------------------------------------------- filters


@given(tied_rows, st.integers(1, 15))
def test_top_k_keeps_exactly_k_with_ties_by_lower_id(row, k):
    by_rank = sorted(range(len(row)), key=lambda i: (-row[i], i))
    logits = torch.tensor([row])
    assert kept(apply_top_k(logits, k)) == sorted(by_rank[:k])


def test_top_k_on_negative_logits_drops_with_minus_infinity():
    """minGPT #10: dropped logits became about 0 and beat the kept, negative ones."""
    sampler = Sampler(top_k=1, seed=3)
    assert {sampler(torch.tensor([[-5.0, -4.0, -3.0]])).item() for _ in range(200)} == {2}


def test_top_k_of_flat_logits_leaves_k_tokens_to_draw():
    """vui PR #32: the largest kept logit was the threshold, so that only one token was left."""
    sampler = Sampler(top_k=5, seed=3)
    drawn = {sampler(torch.zeros(1, 32)).item() for _ in range(500)}
    assert drawn == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("off", [None, 0, 32, 200])
def test_top_k_off_or_beyond_the_vocabulary_draws_what_no_filter_draws(off):
    """nanochat #466: top_k=0 crashed; keras-hub #236: one above the vocabulary did."""
    logits = torch.randn(1, 32, generator=torch.Generator().manual_seed(0))
    plain, filtered = Sampler(seed=5), Sampler(top_k=off, seed=5)
    assert [plain(logits).item() for _ in range(50)] == [filtered(logits).item() for _ in range(50)]


@given(rows.filter(lambda row: len(set(row)) == len(row)), st.floats(0.01, 0.99))
def test_top_p_keeps_the_smallest_set_whose_probability_reaches_p(row, p):
    logits = torch.tensor([row], dtype=torch.float64)
    probs = logits.softmax(-1)[0].tolist()
    by_rank = sorted(range(len(row)), key=lambda i: -row[i])
    mass, expected, distance = Fraction(0), [], 1.0
    for token in by_rank:
        if mass >= Fraction(p):
            break
        expected.append(token)
        mass += Fraction(probs[token])
        distance = min(distance, abs(float(mass) - p))
    if distance > 1e-12:  # at the edge itself rounding decides
        assert kept(apply_top_p(logits, p)) == sorted(expected)


def test_the_token_that_crosses_top_p_is_kept():
    """reasoning-from-scratch #164: `cumsum <= p` kept too few."""
    assert kept(apply_top_p(of_probs(0.5, 0.41, 0.09), 0.9)) == [0, 1]
    assert kept(apply_top_p(of_probs(0.5, 0.25, 0.125, 0.125), 0.6)) == [0, 1]


def test_top_p_keeps_ids_and_not_ranks():
    assert kept(apply_top_p(of_probs(0.1, 0.2, 0.3, 0.4), 0.6)) == [2, 3]


def test_a_tiny_top_p_keeps_the_likeliest_token():
    assert kept(apply_top_p(B02, 1e-300)) == [2]


def test_top_p_of_one_draws_what_no_filter_draws():
    logits = torch.randn(1, 32, generator=torch.Generator().manual_seed(0))
    plain, off = Sampler(seed=5), Sampler(top_p=1, min_p=0, seed=5)
    assert [plain(logits).item() for _ in range(50)] == [off(logits).item() for _ in range(50)]
    assert kept(apply_top_p(torch.tensor([[0.0, -40.0, -80.0]]), 1.0)) != []


@given(rows, st.floats(0, 1))
def test_min_p_keeps_at_least_p_times_the_top_probability(row, p):
    logits = torch.tensor([row], dtype=torch.float64)
    probs = logits.softmax(-1)[0]
    assert kept(apply_min_p(logits, p)) == [i for i, q in enumerate(probs) if q >= p * probs.max()]


def test_min_p_at_its_edges():
    logits = of_probs(0.4, 0.4, 0.2)
    assert kept(apply_min_p(logits, 0.0)) == [0, 1, 2]
    assert kept(apply_min_p(logits, 1.0)) == [0, 1]


FILTERS = [
    (apply_temperature, 0.7),
    (apply_top_k, 2),
    (apply_top_p, 0.6),
    (apply_min_p, 0.3),
]


@pytest.mark.parametrize(("apply", "setting"), FILTERS)
def test_a_filter_works_row_by_row_and_leaves_its_input_alone(apply, setting):
    logits = torch.randn(5, 12, generator=torch.Generator().manual_seed(1))
    before = logits.clone()
    together = apply(logits, setting)
    assert torch.equal(logits, before)
    assert together.shape == logits.shape
    assert together.dtype == logits.dtype
    alone = torch.cat([apply(row, setting) for row in logits.split(1)])
    assert torch.equal(together, alone)


@given(tied_rows, st.integers(1, 4), st.floats(0.01, 1), st.floats(0, 1), st.floats(0.01, 5))
def test_every_combination_leaves_the_likeliest_token(row, k, top_p, min_p, temperature):
    """mlx-lm PR #388: top-k and then top-p left nothing."""
    logits = torch.tensor([row], dtype=torch.float64)
    sampler = Sampler(temperature, k, top_p, min_p)
    assert row.index(max(row)) in kept(sampler.filter(logits))


def test_temperature_comes_before_top_p():
    """transformers PR #8686: the order had changed, and with it what the settings keep."""
    logits = torch.tensor([[3.0, 2.0, 1.0]])
    assert kept(Sampler(temperature=0.5, top_p=0.8).filter(logits)) == [0]
    assert kept(apply_temperature(apply_top_p(logits, 0.8), 0.5)) == [0, 1]


WARPERS = [
    ({"top_k": 5}, [TopKLogitsWarper(5)]),
    ({"top_k": 500}, [TopKLogitsWarper(500)]),
    ({"top_p": 0.7}, [TopPLogitsWarper(0.7)]),
    ({"min_p": 0.1}, [MinPLogitsWarper(0.1)]),
    ({"temperature": 0.6, "top_p": 0.9}, [TemperatureLogitsWarper(0.6), TopPLogitsWarper(0.9)]),
    (
        {"temperature": 1.4, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
        [
            TemperatureLogitsWarper(1.4),
            TopKLogitsWarper(20),
            TopPLogitsWarper(0.8),
            MinPLogitsWarper(0.05),
        ],
    ),
]


@pytest.mark.parametrize(("options", "warpers"), WARPERS)
def test_the_filters_keep_what_those_of_hugging_face_keep(options, warpers):
    for seed in range(20):
        logits = 3 * torch.randn(1, 100, generator=torch.Generator().manual_seed(seed)).double()
        ours = Sampler(**options).filter(logits)
        theirs = logits
        for warper in warpers:
            theirs = warper(None, theirs)
        assert kept(ours) == kept(theirs)
        assert torch.allclose(ours.softmax(-1), theirs.softmax(-1), atol=1e-12)


# ---------------------------------------------------------------- the draw


def test_pick_walks_along_the_shares_and_skips_empty_ones():
    logits = of_probs(0.5, 0.0, 0.25, 0.25, 0.0)
    for u, token in ((0.0, 0), (0.49, 0), (0.5, 2), (0.74, 2), (0.76, 3), (1 - 2**-53, 3)):
        assert pick(logits, u).tolist() == [[token]], u


@given(rows, st.integers(0, 2**53 - 1))
def test_pick_never_gives_a_token_of_probability_zero(row, u):
    logits = apply_top_k(torch.tensor([row], dtype=torch.float64), 3)
    assert pick(logits, u / 2**53).item() in kept(logits)


@settings(max_examples=30)
@given(st.lists(st.floats(-3, 3), min_size=2, max_size=6))
def test_pick_gives_each_token_its_probability(row):
    logits = torch.tensor([row], dtype=torch.float64)
    n = 1000
    counts = Counter(pick(logits, (i + 0.5) / n).item() for i in range(n))
    for token, prob in enumerate(logits.softmax(-1)[0].tolist()):
        assert abs(counts[token] - n * prob) <= 1.001


def test_one_number_is_drawn_per_token_however_many_candidates_are_left():
    logits = torch.randn(1, 32, generator=torch.Generator().manual_seed(0))
    samplers = [Sampler(seed=9, **o) for o in ({}, {"top_k": 1}, {"top_p": 0.3}, {"min_p": 0.9})]
    for _ in range(20):
        for sampler in samplers:
            sampler(logits)
    assert len({sampler.random.getstate() for sampler in samplers}) == 1


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others():
    logits = torch.zeros(1, 1000)
    runs = [[s(logits).item() for _ in range(20)] for s in (Sampler(seed=i) for i in (7, 7, 8))]
    assert runs[0] == runs[1] != runs[2]


def test_the_tokens_of_a_seed_are_the_same_on_every_machine():
    """The generator is Python's, whose sequence for a seed is guaranteed."""
    sampler = Sampler(seed=42)
    assert [sampler(torch.zeros(1, 1000)).item() for _ in range(5)] == [639, 25, 275, 223, 736]


def test_a_row_draws_the_same_alone_first_and_last_in_a_batch():
    """vllm #17524: the order of the batch changed what a seeded row drew."""
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(2))
    alone = [Sampler(seed=i)(logits[i : i + 1]).item() for i in range(3)]
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        choose = each_row([Sampler(seed=i) for i in order])
        assert choose(logits[order]).flatten().tolist() == [alone[i] for i in order]


def test_a_greedy_row_and_a_sampled_row_share_a_batch():
    """nano-vllm PR #249: a batch had to be all greedy or all sampled."""
    logits = torch.cat([B02, B02])
    tokens = each_row([Sampler(0.0), Sampler(0.8, seed=4)])(logits)
    assert tokens.tolist() == [[2], Sampler(0.8, seed=4)(B02)[0].tolist()]


def test_sixteen_samples_do_not_share_their_first_token():
    """nanochat PR #201: the first token was drawn once and copied to all rows."""
    tokens = each_row([Sampler(seed=i) for i in range(16)])(torch.zeros(16, 1000))
    assert len(set(tokens.flatten().tolist())) == 16


def test_each_row_needs_its_own_sampler():
    with pytest.raises(ValueError, match="2 samplers for 3 rows"):
        each_row([Sampler(), Sampler()])(torch.zeros(3, 8))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0, 1])
def test_non_finite_logits_raise_an_error_that_names_the_step(value, temperature):
    sampler = Sampler(temperature)
    sampler(B02)
    broken = B02.clone()
    broken[0, 3] = value
    with pytest.raises(ValueError, match="step 1 are NaN or infinite"):
        sampler(broken)
    with pytest.raises(ValueError, match="NaN or infinite"):
        greedy(broken)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_logits_of_any_dtype_are_sampled_in_float64(dtype):
    logits = B02.to(dtype)
    expected = pick(apply_temperature(logits.double(), 0.9), Sampler(seed=6).random.random())
    assert torch.equal(Sampler(0.9, seed=6)(logits), expected)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_k": -1},
        {"top_k": 2.5},
        {"top_p": 0},
        {"top_p": -0.1},
        {"top_p": 1.5},
        {"top_p": math.nan},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"min_p": math.nan},
        {"seed": -1},
        {"seed": 1.5},
    ],
    ids=str,
)
def test_a_bad_setting_is_refused_when_the_sampler_is_made(options):
    (name, value), = options.items()  # fmt: skip
    with pytest.raises(ValueError, match=f"{name} is {value}: it must be"):
        Sampler(**options)


@pytest.mark.parametrize(
    ("apply", "setting"),
    [
        (apply_temperature, 0),
        (apply_temperature, -1),
        (apply_top_k, 0),
        (apply_top_p, 0),
        (apply_min_p, 2),
    ],
)
def test_a_filter_refuses_a_bad_setting_by_itself(apply, setting):
    with pytest.raises(ValueError, match="it must be"):
        apply(B02, setting)


def test_a_large_vocabulary_is_sampled_right():
    logits = torch.zeros(1, 50257)
    logits[0, 50256] = 30.0
    assert Sampler(top_k=50, top_p=0.9, min_p=0.1)(logits).item() == 50256
