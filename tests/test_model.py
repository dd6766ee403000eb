"""The model against equations written in numpy, and the contract of its cache."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from model import GPT, GPTConfig, causal_mask
from stages.stage4_kv_cache import KVCache
from support import layout
from tests.helpers import TINY, numpy_logits, random_ids, random_model

SHAPES = [
    TINY,
    GPTConfig(block_size=8, vocab_size=11, n_layer=1, n_head=1, n_embd=4),
    GPTConfig(block_size=32, vocab_size=50, n_layer=3, n_head=4, n_embd=24),
    GPTConfig(block_size=20, vocab_size=7, n_layer=2, n_head=6, n_embd=6),
]


@pytest.mark.parametrize("config", SHAPES, ids=str)
def test_logits_equal_the_equations_of_gpt2_in_float64(config):
    model = random_model(config)
    for tokens in (1, 2, config.block_size):
        ids = random_ids(tokens, seed=tokens, config=config)
        with torch.inference_mode():
            logits = model(ids)[0].numpy()
        assert np.abs(logits - numpy_logits(model, ids[0].tolist())).max() < 1e-10


def test_float32_logits_stay_near_the_equations():
    model = random_model(dtype=torch.float32)
    ids = random_ids(16)
    with torch.inference_mode():
        logits = model(ids)[0].numpy()
    assert np.abs(logits - numpy_logits(model, ids[0].tolist())).max() < 1e-4


def test_every_parameter_has_an_effect():
    model, ids = random_model(), random_ids(16)
    with torch.inference_mode():
        before = model(ids)
        for name, parameter in model.named_parameters():
            kept = parameter.clone()
            parameter += torch.randn_like(parameter)
            assert (model(ids) - before).abs().max() > 1e-3, name
            parameter.copy_(kept)


def test_the_default_shape_has_the_124m_parameters_of_the_published_gpt2():
    with torch.device("meta"):
        model = GPT(GPTConfig())
    assert sum(parameter.numel() for parameter in model.parameters()) == 124_439_808


def test_initial_weights_keep_the_size_of_activations_at_any_width():
    for n_embd in (64, 256):
        model = GPT(GPTConfig(n_layer=8, n_head=4, n_embd=n_embd))
        assert model.wte.weight.std().item() == pytest.approx(n_embd**-0.5, rel=0.05)
        residual = model.h[0].mlp.c_proj.weight.std().item()
        assert residual == pytest.approx(n_embd**-0.5 / 4, rel=0.05)


def test_attention_starts_as_a_copier_of_what_it_reads():
    """A head that sees one position only writes back a positive multiple of what it read."""
    C = 64
    attention = GPT(GPTConfig(block_size=8, vocab_size=9, n_layer=2, n_head=4, n_embd=C)).h[0].attn
    x = torch.randn(20, 1, C)
    with torch.inference_mode():
        y = attention(x, None, 0, None)
    assert F.cosine_similarity(x, y, dim=-1).min() > 0.5


def test_later_tokens_do_not_influence_earlier_logits():
    """torchtune #959: the causal mask was made only when a cache was set up."""
    model, ids = random_model(), random_ids(10)
    changed = ids.clone()
    changed[0, -1] = (ids[0, -1] + 1) % TINY.vocab_size
    with torch.inference_mode():
        plain = model(ids)[:, :-1] - model(changed)[:, :-1]
        cached = [model.hidden(x, KVCache(model, 10))[:, :-1] for x in (ids, changed)]
    assert plain.abs().max() == 0
    assert (cached[0] - cached[1]).abs().max() == 0


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8).filter(lambda c: sum(c) <= 16))
@settings(max_examples=40, deadline=None)
def test_a_prompt_fed_in_any_chunks_has_the_logits_of_the_whole(chunks):
    """The mask of PyTorch's is_causal is aligned to the top left: wrong behind cached keys."""
    model = random_model()
    ids = random_ids(sum(chunks), seed=len(chunks))
    cache = KVCache(model, capacity=16)
    with torch.inference_mode():
        parts = [model.hidden(part, cache) for part in ids.split(chunks, dim=1)]
        whole = model.hidden(ids)
    assert cache.length == sum(chunks)
    assert (torch.cat(parts, dim=1) - whole).abs().max() < 1e-11


def test_positions_go_on_behind_the_cached_ones():
    """mlx-lm PR #93: positions of decoded tokens started at 0 again."""
    model = random_model()
    cache = KVCache(model, capacity=8)
    assert cache.positions(5).tolist() == [0, 1, 2, 3, 4]
    with torch.inference_mode():
        model.hidden(random_ids(5), cache)
    assert cache.positions(3).tolist() == [5, 6, 7]


def test_the_causal_mask_is_aligned_to_the_newest_position():
    cpu = torch.device("cpu")
    assert causal_mask(2, 5, cpu).int().tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert causal_mask(1, 5, cpu).all()
    assert causal_mask(3, 3, cpu).int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_a_cache_refuses_more_tokens_than_it_holds_and_stays_as_it_was():
    model = random_model()
    cache = KVCache(model, capacity=4)
    with torch.inference_mode():
        model.hidden(random_ids(3), cache)
        with pytest.raises(ValueError, match=r"2 new tokens after 3 cached ones.*holds 4"):
            model.hidden(random_ids(2), cache)
    assert cache.length == 3


def test_cache_memory_starts_as_zeros_and_never_moves():
    model = random_model()
    cache = KVCache(model, capacity=8)
    assert not cache.memory.any()
    address = cache.memory.data_ptr()
    with torch.inference_mode():
        for _ in range(8):
            model.hidden(random_ids(1), cache)
    assert cache.memory.data_ptr() == address


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.tensor([1, 2]), r"shape \(2,\).*\(batch, tokens\)"),
        (torch.tensor([[1.0]]), "torch.float32"),
        (torch.zeros(1, 0, dtype=torch.long), "no ids.*end-of-text"),
        (torch.zeros(1, 17, dtype=torch.long), r"17 tokens.*reads 16.*ids\[:, -16:\]"),
        (torch.tensor([[3, 32]]), "id 32 is not a token.*0 to 31"),
        (torch.tensor([[3, -9223372036854775808]]), "id -9223372036854775808 is not a token"),
    ],
)
def test_bad_ids_are_refused_with_what_is_allowed(ids, message):
    with pytest.raises(ValueError, match=message):
        random_model()(ids)


@pytest.mark.parametrize(
    ("field", "value"),
    [("n_head", 5), ("n_layer", 0), ("block_size", -1), ("dropout", 1.0), ("dropout", -0.1)],
)
def test_a_shape_that_cannot_be_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=field):
        GPTConfig(**{field: value})


def test_dropout_adds_noise_in_training_and_none_when_generating():
    """nanoGPT PR #240: dropout was active in sampling, whatever mode the model was in."""
    config = GPTConfig(block_size=16, vocab_size=32, n_layer=2, n_head=2, n_embd=16, dropout=0.5)
    model, ids = random_model(config).train(), random_ids(8)
    assert (model(ids) - model(ids)).abs().max() > 0.1
    with torch.inference_mode():
        noiseless = model(ids)
        assert torch.equal(model(ids), noiseless)
    assert torch.equal(model.eval()(ids), noiseless)


def test_attention_weights_are_dropped_in_training_too():
    config = GPTConfig(block_size=16, vocab_size=32, n_layer=1, n_head=2, n_embd=16, dropout=0.5)
    model = random_model(config).train()
    for module in (model.dropout, model.h[0].attn.dropout, model.h[0].mlp.dropout):
        module.p = 0.0
    ids = random_ids(8)
    assert (model(ids) - model(ids)).abs().max() > 0.01


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize(("rows", "tokens"), [(1, 1), (1, 7), (2, 1), (3, 4)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_layout_for_decoding_changes_no_shape_and_no_number(
    dtype, rows, tokens, small, two_threads, monkeypatch
):
    if not small:
        monkeypatch.setattr(layout, "SMALL", 0)
    model = random_model(dtype=dtype)
    ids = random_ids(tokens, rows=rows)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 1e-1}[dtype]
    with torch.inference_mode():
        logits = model(ids)
        layout.lay_out_for_decoding(model)
        # A product may be summed in another order; nothing else may differ.
        assert torch.allclose(model(ids), logits, atol=tolerance)
        last = model.head(model.hidden(ids, KVCache(model, 8, rows))[:, -1])
        assert torch.allclose(last, logits[:, -1], atol=tolerance)
    for name, tensor in model.state_dict().items():
        assert tensor.shape == before[name].shape
        assert tensor.equal(before[name])
