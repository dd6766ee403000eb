"""What people hand to a loop first, and what they do with what they get back (T4, T5)."""

import itertools
import re

import numpy as np
import pytest
import torch

import generate as stage0
from model import GPT, Cache
from stages import stage1_last_logits as stage1
from stages import stage2_sampling as stage2
from stages import stage3_stopping as stage3
from stages import stage4_kv_cache as stage4
from stages import stage5_batching as stage5
from stages import stage6_serving as stage6
from stages.stage2_sampling import Sampler, greedy
from tests.helpers import never, random_ids, random_model

MODES = [torch.enable_grad, torch.no_grad, torch.inference_mode]
LOOPS = {
    "model": lambda model, ids: model(ids),
    "hidden": lambda model, ids: model.hidden(ids),
    "stage 0": lambda model, ids: stage0.generate(model, ids, 5),
    "stage 1": lambda model, ids: stage1.generate(model, ids, 5),
    "stage 2": lambda model, ids: stage2.generate(model, ids, 5, greedy),
    "stage 3": lambda model, ids: list(stage3.generate(model, ids, 5, greedy, never)),
    "stage 4": lambda model, ids: list(stage4.generate(model, ids, 5, greedy, never)),
}
ODD_IDS = [
    ([1, 2], "list of shape ()"),
    ([[1, 2]], "list of shape ()"),
    ("Once", "str of shape ()"),
    (5, "int of shape ()"),
    (None, "NoneType of shape ()"),
    (torch.tensor([1, 2]), "torch.int64 of shape (2,)"),
    (torch.tensor(1), "torch.int64 of shape ()"),
    (torch.tensor([[[1, 2]]]), "torch.int64 of shape (1, 1, 2)"),
    (np.array([[1, 2]]), "int64 of shape (1, 2)"),
    (np.array([1.0, 2.0]), "float64 of shape (2,)"),
    *((torch.tensor([[1, 2]], dtype=dtype), f"{dtype} of shape (1, 2)")
      for dtype in (torch.int32, torch.int16, torch.uint8, torch.bool, torch.float32, torch.half)),
]  # fmt: skip


@pytest.mark.parametrize(("ids", "what"), ODD_IDS, ids=[what for _, what in ODD_IDS])
@pytest.mark.parametrize("loop", LOOPS)
def test_odd_ids_are_answered_alike_with_a_call_that_works(loop, ids, what):
    with pytest.raises(ValueError, match=re.escape("such as torch.tensor([[1, 2]])")) as error:
        LOOPS[loop](random_model(), ids)
    assert str(error.value).startswith(f"ids are {what}: ")
    LOOPS[loop](random_model(), torch.tensor([[1, 2]]))


@pytest.mark.parametrize("loop", ["stage 3", "stage 4"])
def test_a_loop_for_one_sequence_refuses_a_batch_and_shows_how_to_take_one(loop):
    ids = random_ids(4, rows=2)
    with pytest.raises(ValueError, match=r"ids hold 2 sequences: .* ids\[:1\]"):
        LOOPS[loop](random_model(), ids)
    LOOPS[loop](random_model(), ids[:1])


def test_one_sampler_does_not_serve_two_rows():
    """It gave both rows the same random number, and said nothing."""
    model, ids = random_model(), random_ids(4, rows=2)
    with pytest.raises(ValueError, match=r"batch is 2: it must be 1, or pass each_row"):
        stage2.generate(model, ids, 3, Sampler(seed=1))
    stage2.generate(model, ids, 3, stage2.each_row([Sampler(seed=1), Sampler(seed=2)]))


@pytest.mark.parametrize("request_of", [stage5.Request, stage6.Request])
def test_a_requests_prompt_may_be_any_row_of_whole_numbers_and_nothing_else(request_of):
    for prompt in ([1, 2], (1, 2), range(1, 3), torch.tensor([1, 2]), np.array([1, 2])):
        request = request_of(prompt, 3, greedy, never)
        assert request.ids == [1, 2]
        assert all(type(token) is int for token in request.ids)
    for prompt in ("ab", ["a"], [1.0, 2.0], torch.tensor([1.5]), torch.ones(2, 2).long(), 5, None):
        with pytest.raises(ValueError, match=r"prompt must be ids, such as \[1, 2\]"):
            request_of(prompt, 3, greedy, never)


# Gradient modes


def gradients(model: GPT, ids: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    model(ids).square().mean().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("loop", [stage3.generate, stage4.generate])
def test_gradients_flow_before_during_and_after_a_generation(loop):
    model, ids = random_model(), random_ids(5)
    before = gradients(model, ids)
    steps = loop(model, ids, 6, greedy, never)
    for step in itertools.islice(steps, 3):
        assert torch.is_grad_enabled()
        assert not step.logits.requires_grad
        for mine, theirs in zip(gradients(model, ids), before, strict=True):
            assert torch.equal(mine, theirs)
    steps.close()
    for mine, theirs in zip(gradients(model, ids), before, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("loop", [stage3.generate, stage4.generate])
def test_a_steps_logits_are_an_ordinary_tensor_of_the_callers_own(loop):
    model, ids = random_model(), random_ids(5)
    plain = [step.token for step in loop(model, ids, 6, greedy, never)]
    weight = torch.ones(32, dtype=torch.float64, requires_grad=True)
    changed = []
    for step in loop(model, ids, 6, greedy, never):
        changed.append(step.token)
        (step.logits * weight).sum().backward()
        step.logits.add_(1).mul_(-1)
    assert changed == plain
    assert weight.grad.abs().sum() > 0


@pytest.mark.parametrize("loop", [stage0.generate, stage1.generate, stage2.generate])
def test_new_ids_can_be_changed_and_trained_on(loop):
    """Inference mode's can't: "Inference tensors cannot be saved for backward"."""
    model, ids = random_model(), random_ids(5)
    new = loop(model, ids, 4, *([greedy] if loop is stage2.generate else []))
    assert any(gradient.abs().sum() > 0 for gradient in gradients(model, new))
    new[0, 0] = 3


def one_slot(model: GPT, capacity: int) -> stage5.Slots:
    return stage5.Slots(model, rows=1, capacity=capacity)


def for_forward(cache: stage4.KVCache | stage5.Slots, tokens: int) -> Cache:
    """What the model is handed: slots make a view for each forward."""
    return cache if isinstance(cache, stage4.KVCache) else cache.view(slice(1), [tokens])


@pytest.mark.parametrize("used_in", MODES)
@pytest.mark.parametrize("made_in", MODES)
@pytest.mark.parametrize("cached", [stage4.KVCache, one_slot])
def test_a_cache_works_in_every_mode_whichever_it_was_made_in(cached, made_in, used_in):
    model, ids = random_model(), random_ids(6)
    with torch.no_grad():
        expected = model.hidden(ids)
    with made_in():
        cache = cached(model, 6)
    with used_in():
        hidden = model.hidden(ids, for_forward(cache, 6))
    assert torch.allclose(hidden, expected, atol=1e-10)
    assert hidden.requires_grad == (used_in is torch.enable_grad)
    assert not cache.memory.requires_grad


@pytest.mark.parametrize("cached", [stage4.KVCache, one_slot])
def test_gradients_through_a_first_forward_with_a_cache_are_those_without(cached):
    model, ids = random_model(), random_ids(6)
    expected = gradients(model, ids)
    model.zero_grad()
    model.head(model.hidden(ids, for_forward(cached(model, 6), 6))).square().mean().backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.allclose(parameter.grad, gradient, atol=1e-10)


@pytest.mark.parametrize("mode", MODES)
def test_a_cache_that_saw_gradients_serves_a_generation_afterwards(mode):
    model, ids = random_model(), random_ids(6)
    cache = stage4.KVCache(model, 16)
    model.hidden(ids, cache)
    with mode():
        for token in (3, 5):
            hidden = model.hidden(torch.tensor([[token]]), cache)
    whole = torch.cat((ids, torch.tensor([[3, 5]])), dim=1)
    assert torch.allclose(hidden[:, -1], model.hidden(whole)[:, -1], atol=1e-10)


def test_dropout_is_off_without_gradients_and_on_in_training():
    model = random_model()
    for module in model.modules():
        if hasattr(module, "p"):
            module.p = 0.5
    model.train()
    ids = random_ids(5)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(model(ids), model(ids))
    assert not torch.equal(model(ids), model(ids))
