"""Stage 6: who runs when, that nobody notices it, and that every request ends exactly once."""

import ast
import inspect
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import generate as stage0
from benchmarks import serving_load, serving_speed
from model import GPTConfig
from stages import stage1_last_logits as stage1
from stages import stage4_kv_cache as stage4
from stages import stage5_batching as stage5
from stages import stage6_serving as stage6
from stages.stage2_sampling import Sampler, greedy
from stages.stage2_sampling import generate as stage2_generate
from stages.stage6_serving import PATIENCE, POLICIES, Engine, Event, Request, Scheduler
from support.counting import counting
from tests.helpers import Hashed, Wish, never, random_ids, random_model, wishes

REPO = Path(__file__).parent.parent


def run_all(engine: Engine, limit: int = 10_000) -> None:
    """Step until nothing is left to do, and not for ever."""
    while engine.step():
        assert engine.steps < limit


def serve(model, several: list[Wish], **options) -> list[tuple[list[int], str | None]]:
    """Tokens and finish reason of each, all submitted at once."""
    engine = Engine(model, **options)
    requests = [engine.submit(wish.request(Request)) for wish in several]
    run_all(engine)
    return [(request.tokens, request.finish_reason) for request in requests]


def asking(prompt: int = 2, new: int = 4, choose=greedy, should_stop=never) -> Request:
    return Request([1] * prompt, new, choose, should_stop)


def poison_free_slots(engine: Engine) -> None:
    """What stands in a free slot must not matter, as long as it isn't NaN: 0 * NaN is NaN."""
    engine.slots.memory[:, :, len(engine.scheduler.running) :] = 1e4


# ---------------------------------------------------------------- the equivalence matrix

SAMPLERS = {
    "greedy": (("temperature", 0),),
    "seeded": (("temperature", 1.5), ("top_k", 20), ("top_p", 0.95), ("seed", 7)),
}
CASES = ["fits", "reaches the context edge", "eos at once", "eos last", "one token", "no token"]


def wish_for(case: str, model, sampler) -> Wish:
    """A request in which `case` happens; for an end, one whose last token didn't come before."""
    for seed in range(100):
        prompt = tuple(random_ids(5, seed=seed)[0].tolist())
        if case == "reaches the context edge":
            return Wish(prompt, 40, sampler)
        new = {"one token": 1, "no token": 0}.get(case, 7)
        wish = Wish(prompt, new, sampler)
        if not case.startswith("eos"):
            return wish
        tokens, _ = wish.alone(model)
        token = tokens[0 if case == "eos at once" else -1]
        if case == "eos at once" or token not in tokens[:-1]:
            return Wish(prompt, new, sampler, frozenset([token]))
    raise AssertionError("no such run")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rule_name", SAMPLERS)
def test_all_loops_make_the_same_tokens(case, rule_name):
    """Plain, last logits, cached, chunked prefill, batched and continuous."""
    model = random_model(seed=1)
    wish = wish_for(case, model, SAMPLERS[rule_name])
    expected = wish.alone(model)
    tokens, reason = expected
    assert reason == {
        "reaches the context edge": "context_full", "eos at once": "eos", "eos last": "eos"
    }.get(case, "max_new_tokens")  # fmt: skip

    ids, new = torch.tensor([wish.prompt]), len(tokens)
    assert stage2_generate(model, ids, new, wish.choose())[0, 5:].tolist() == tokens
    if rule_name == "greedy":
        assert stage0.generate(model, ids, new)[0, 5:].tolist() == tokens
        assert stage1.generate(model, ids, new)[0, 5:].tolist() == tokens
    neighbours = [wish_for(other, model, SAMPLERS["seeded"]) for other in CASES]
    batch = stage5.generate(model, [w.request(stage5.Request) for w in [*neighbours, wish]])
    assert (batch[-1].tokens, batch[-1].finish_reason) == expected
    assert serve(model, [wish], slots=1, budget=2) == [expected]  # chunked prefill
    for policy in POLICIES:
        assert serve(model, [*neighbours, wish], slots=3, policy=policy)[-1] == expected


# ---------------------------------------------------------------- same tokens, whatever happens


@pytest.mark.parametrize("policy", POLICIES)
@given(st.data())
@settings(max_examples=40)
def test_each_request_gets_what_it_gets_alone_whoever_comes_goes_and_is_cancelled(policy, data):
    """Random arrivals, cancellations, slots and budgets; freed slots are poisoned at every step."""
    model = random_model(seed=data.draw(st.integers(0, 3)))
    draw_and_compare(model, wishes(), policy, data)


@pytest.mark.parametrize("policy", POLICIES)
@given(st.data())
@settings(max_examples=40)
def test_no_slot_sees_a_token_or_a_position_of_another(policy, data):
    model = Hashed(block_size=24)
    draw_and_compare(model, wishes(model.config), policy, data)


def draw_and_compare(model, some_wishes, policy: str, data: st.DataObject) -> None:
    engine = Engine(
        model,
        slots=data.draw(st.integers(1, 5)),
        budget=data.draw(st.sampled_from([2, 4, 9, 24])),
        policy=policy,
    )
    served: list[tuple[Wish, Request]] = []
    actions = st.sampled_from(["submit", "step", "step", "step", "cancel"])
    for action in data.draw(st.lists(actions, min_size=5, max_size=30)):
        poison_free_slots(engine)
        if action == "submit":
            for wish in data.draw(st.lists(some_wishes, min_size=1, max_size=3)):
                served.append((wish, engine.submit(wish.request(Request))))
        elif action == "step":
            engine.step()
        elif served:
            engine.cancel(data.draw(st.sampled_from(served))[1])
    while engine.step():
        poison_free_slots(engine)
    for wish, request in served:
        tokens, reason = wish.alone(model)
        if request.finish_reason == "cancelled":
            assert request.tokens == tokens[: len(request.tokens)]
            assert len(request.tokens) < len(tokens)
        else:
            assert (request.tokens, request.finish_reason) == (tokens, reason)
    assert not engine.scheduler.waiting
    assert not engine.scheduler.running


def test_what_a_request_left_as_nan_does_not_reach_the_next_in_its_slot():
    """A masked value counts as 0 * value, and 0 * NaN is NaN: no mask helps, only clearing."""
    model = random_model()
    with torch.no_grad():
        model.wte.weight[9] = torch.nan  # and with it the logit of 9, so only ids of 9 break
    model.head = lambda hidden: (hidden @ model.wte.weight.T).nan_to_num(-1e3) + 0 * hidden[:, :1]
    broken, good = Wish((1, 9, 3, 4, 5, 6), 4), Wish((1, 2), 9)
    expected = good.alone(model)
    for before in range(4):  # in the last slot, the next one there is shorter than its neighbours
        engine = Engine(model, slots=3)
        requests = [wish.request(Request) for wish in [*[good] * before, broken, *[good] * 5]]
        for request in requests:
            engine.submit(request)
        run_all(engine)
        first = requests.pop(before)
        assert first.finish_reason == "failed"
        assert "NaN" in str(first.error)
        assert [(r.tokens, r.finish_reason) for r in requests] == [expected] * (before + 5)


# ---------------------------------------------------------------- the scheduler alone


class AnyTraffic(RuleBasedStateMachine):
    """Drive a Scheduler as the engine does, with no model: reading is counting.

    `begun` and `ended` are in the order in which it happened.
    """

    @initialize(
        slots=st.integers(1, 5),
        queue_limit=st.integers(1, 6),
        budget=st.integers(1, 24),
        policy=st.sampled_from(POLICIES),
    )
    def start(self, slots, queue_limit, budget, policy):
        self.scheduler = Scheduler(slots, queue_limit, budget, policy)
        self.submitted, self.begun, self.ended = [], [], []
        self.in_slot: list[Request | None] = [None] * slots  # as the cache would have it
        self.since_token: Counter[Request] = Counter()  # steps that a decoding request has waited
        self.at_the_door = 0  # steps that the first in the queue has waited with a slot free

    @rule(
        several=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 8)), min_size=1, max_size=4)
    )
    def submit(self, several):
        for prompt, new in several:
            if not self.scheduler.full:
                request = asking(prompt, new)
                request.start(block_size=64)
                self.scheduler.waiting.append(request)
                self.submitted.append(request)

    @rule(steps=st.integers(1, 5))
    def go_on(self, steps):
        for _ in range(steps):
            self.step()
            self.decoding_requests_come_first_and_one_at_most_is_half_read()

    def step(self):
        scheduler = self.scheduler
        waited = [request for request in scheduler.running if request.decoding]
        ready = bool(scheduler.running or scheduler.waiting)
        free = len(waited) == len(scheduler.running) < scheduler.slots
        first = scheduler.waiting[0] if free and scheduler.waiting else None
        turn = scheduler.turn()
        worked = False
        for kind in turn:
            before = list(scheduler.running)
            rows, counts = scheduler.plan(kind)
            requests = scheduler.running[rows]
            assert len(requests) == len(counts)
            assert scheduler.running[: len(before)] == before
            self.begun += scheduler.running[len(before) :]
            for request in scheduler.running[len(before) :]:
                self.in_slot[scheduler.running.index(request)] = request
            worked = worked or bool(counts)
            assert all(request.decoding == (kind == "decode") for request in requests)
            assert all(count > 0 for count in counts)
            if kind == "decode":
                assert counts == [1] * scheduler.decoding
            elif counts:
                assert len(counts) * max(counts) <= scheduler.budget
            for request, count in zip(requests, counts, strict=True):
                request.cached += count
            for request in requests:
                if request.decoding:
                    request.ids.append(0)
                    self.since_token[request] = 0
                    if request.at_limit():
                        self.end(request)
        assert worked == ready  # no step is idle while there is work
        stays = first is not None and first in scheduler.waiting
        self.at_the_door = self.at_the_door + 1 if stays else 0
        if scheduler.policy == "decode_first":
            assert not stays or waited
        else:
            assert self.at_the_door <= (1 if scheduler.policy == "prefill_first" else 0)
        for request in waited:
            if request in scheduler.running and request not in self.just_served(turn):
                self.since_token[request] += 1
                assert self.since_token[request] <= PATIENCE

    def just_served(self, turn) -> list[Request]:
        return self.scheduler.running if "decode" in turn else []

    @rule(choice=st.integers(0, 99))
    def cancel(self, choice):
        now = [*self.scheduler.waiting, *self.scheduler.running]
        if not now:
            return
        request = now[choice % len(now)]
        if request in self.scheduler.running:
            self.end(request)
        else:
            self.scheduler.waiting.remove(request)
            self.submitted.remove(request)

    def end(self, request):
        self.ended.append(request)
        for source, target in self.scheduler.remove(request):
            self.in_slot[target] = self.in_slot[source]
        self.in_slot[len(self.scheduler.running)] = None

    @invariant()
    def running_requests_are_in_the_slots_that_the_moves_put_them_in(self):
        if hasattr(self, "scheduler"):
            free = self.scheduler.slots - len(self.scheduler.running)
            assert self.in_slot == self.scheduler.running + [None] * free

    @invariant()
    def decoding_requests_come_first_and_one_at_most_is_half_read(self):
        if hasattr(self, "scheduler"):
            decoding = [request.decoding for request in self.scheduler.running]
            assert decoding == sorted(decoding, reverse=True)
            assert decoding.count(False) <= 1

    @invariant()
    def nobody_is_lost_and_the_queue_has_its_bound(self):
        if hasattr(self, "scheduler"):
            scheduler = self.scheduler
            assert len(scheduler.waiting) <= scheduler.queue_limit
            now = Counter([*scheduler.waiting, *scheduler.running, *self.ended])
            assert now == Counter(self.submitted)

    @invariant()
    def first_come_first_served(self):
        if hasattr(self, "scheduler"):
            assert self.begun == self.submitted[: len(self.begun)]

    def teardown(self):
        """With no new arrivals, everybody ends, in no more steps than there are tokens to feed."""
        if hasattr(self, "scheduler"):
            left = [*self.scheduler.running, *self.scheduler.waiting]
            steps = sum(request.end - request.cached for request in left)
            for _ in range(steps):
                self.step()
            assert not self.scheduler.running
            assert not self.scheduler.waiting


TestAnyTraffic = AnyTraffic.TestCase
TestAnyTraffic.settings = settings(max_examples=150, stateful_step_count=40)


def test_a_gap_is_closed_so_that_either_kind_stays_together():
    """Four that decode, in slots 0 to 3, and one that is half read behind them."""
    for gap, moves in ((0, [(3, 0), (4, 3)]), (2, [(3, 2), (4, 3)]), (3, [(4, 3)]), (4, [])):
        scheduler = Scheduler(5, 1, 1, "mixed")
        scheduler.running = [asking(prompt=2) for _ in range(5)]
        for request in scheduler.running[:4]:
            request.cached = 2
        half_read, gone = scheduler.running[4], scheduler.running[gap]
        assert scheduler.remove(gone) == moves
        assert len(scheduler.running) == 4
        assert gone not in scheduler.running
        assert gone is half_read or scheduler.running[3] is half_read


def decode_steps(scheduler: Scheduler, steps: int) -> str:
    """What it does while one request decodes for ever and short ones come without end: d or p."""
    eternal = asking(1, 1)
    scheduler.waiting.append(eternal)
    done = ""
    for _ in range(steps):
        while not scheduler.full:
            scheduler.waiting.append(asking(1, 1))
        for kind in scheduler.turn():
            rows, counts = scheduler.plan(kind)
            requests = scheduler.running[rows]
            done += kind[0] if requests else ""
            for request, count in zip(requests, counts, strict=True):
                request.cached += count
            for request in requests:
                request.ids.append(0)
                if request is not eternal:
                    scheduler.remove(request)
    return done


def test_requests_that_end_at_once_do_not_starve_one_that_decodes():
    """Their slots are free again after each prefill, so there is always something to prefill."""
    done = decode_steps(Scheduler(2, 5, 8, "prefill_first"), 100)
    assert max(map(len, done.split("d"))) == PATIENCE + 1  # the first one made it decode
    assert decode_steps(Scheduler(2, 5, 8, "mixed"), 20) == "p" + "dp" * 19
    done = decode_steps(Scheduler(2, 5, 8, "decode_first"), 100)
    assert done == "p" * (PATIENCE + 1) + "d" * (99 - PATIENCE)


def forwards(policy: str) -> str:
    """What each step does for five requests in two slots: p prefill, d decode."""
    engine, done = Engine(random_model(), 2, policy=policy), []
    plan = engine.scheduler.plan

    def remembered(kind):
        rows, counts = plan(kind)
        done.extend(kind[0] if counts else "")
        return rows, counts

    engine.scheduler.plan = remembered  # type: ignore[method-assign]
    for new in (2, 4, 2, 2, 2):
        engine.submit(asking(new=new))
    while engine.step():
        done.append(" ")
    return "".join(done).strip()


def test_the_policies_do_what_they_say():
    """The second request makes 4 tokens, and the others, of 2, pass through the other slot."""
    assert forwards("mixed") == "p dp dp dp d"
    assert forwards("prefill_first") == "p d p d p d p d"
    assert forwards("decode_first") == "p d d d p d p d"


def test_a_long_prompt_is_read_in_chunks_while_the_others_decode():
    for policy, tokens in (("mixed", [1] * 8), ("prefill_first", [0] * 7 + [1])):
        engine = Engine(random_model(), slots=2, budget=2, policy=policy)
        short = engine.submit(asking(prompt=2, new=12))
        engine.step()
        long = engine.submit(asking(prompt=15, new=1))
        made = []
        while not long.tokens:
            before = len(short.tokens)
            engine.step()
            made.append(len(short.tokens) - before)
        assert len(made) == 8  # ceil(15 / 2) chunks
        assert made[:7] == tokens[:7]


def test_the_budget_counts_pads():
    scheduler = Scheduler(8, 8, budget=64, policy="mixed")
    scheduler.waiting.extend(asking(prompt) for prompt in (10, 9, 30, 1))
    assert scheduler.plan("prefill") == (slice(0, 3), [10, 9, 21])
    assert len(scheduler.waiting) == 1
    scheduler = Scheduler(8, 8, budget=20, policy="mixed")
    scheduler.waiting.extend(asking(prompt) for prompt in (15, 1))
    assert scheduler.plan("prefill") == (slice(0, 1), [15])  # a second row would have 14 pads


def test_nobody_is_admitted_behind_a_prompt_that_was_cut():
    """A third row of one token would fit the budget, and would decode while slot 1 is half read."""
    scheduler = Scheduler(3, 3, budget=3, policy="mixed")
    scheduler.waiting.extend(asking(prompt) for prompt in (1, 5, 1))
    assert scheduler.plan("prefill") == (slice(0, 2), [1, 1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": 0}, "slots is 0: it must be 1 or more"),
        ({"queue_limit": 0}, "queue_limit is 0"),
        ({"budget": -1}, "budget is -1"),
        ({"policy": "fair"}, "policy is 'fair': it must be one of mixed, prefill_first, decode_fi"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Engine(random_model(), **options)


# ---------------------------------------------------------------- submit


def test_the_queue_has_a_bound_and_a_refused_request_may_come_again():
    engine = Engine(random_model(), slots=1, queue_limit=2)
    requests = [engine.submit(asking()) for _ in range(2)]
    late = asking()
    with pytest.raises(ValueError, match=r"queue is full, 2 requests wait.*submit again"):
        engine.submit(late)
    engine.step()  # the first has a slot now
    engine.submit(late)
    run_all(engine)
    assert [r.finish_reason for r in [*requests, late]] == ["max_new_tokens"] * 3


@pytest.mark.parametrize(
    ("prompt", "new", "message"),
    [(17, 1, "prompt has 17 tokens: the model reads 1 to 16"), (0, 1, "0 tokens"), (1, -1, "-1")],
)
def test_what_never_fits_is_refused_at_once(prompt, new, message):
    events = []
    engine = Engine(random_model(), record=events.append)
    with pytest.raises(ValueError, match=message):
        engine.submit(asking(prompt, new))
    assert not engine.step()
    assert events == []


def test_a_request_can_be_submitted_once():
    engine = Engine(random_model())
    request = engine.submit(asking())
    with pytest.raises(ValueError, match="this request has run"):
        engine.submit(request)


@pytest.mark.parametrize(("prompt", "new"), [(3, 0), (16, 5)])
def test_a_request_without_room_for_a_token_ends_without_a_forward(prompt, new):
    model = random_model()
    engine = Engine(model)
    with counting(model) as counts:
        request = engine.submit(asking(prompt, new))
        assert not engine.step()
    assert request.finish_reason == ("context_full" if new else "max_new_tokens")
    assert counts.forwards == 0


def test_an_engine_alone_with_one_request_costs_what_stage_4_costs():
    model, wish = random_model(), Wish((1, 2, 3), 8)
    with counting(model) as alone:
        wish.alone(model)
    with counting(model) as served:
        serve(model, [wish])
    assert (served.forwards, served.positions) == (alone.forwards, alone.positions)
    assert served.head_rows == alone.head_rows


# ---------------------------------------------------------------- cancel


def state(engine: Engine, request: Request) -> str:
    if request in engine.scheduler.waiting:
        return "queued"
    if request in engine.scheduler.running:
        return "decode" if request.decoding else "prefill"
    return "gone"


@pytest.mark.parametrize(
    ("when", "steps", "tokens"), [("queued", 0, 0), ("prefill", 1, 0), ("decode", 4, 2)]
)
def test_a_request_can_be_cancelled_wherever_it_is(when, steps, tokens):
    """llama-cpp-python PR #733: a cancel didn't reach the processing of the prompt."""
    model, events = random_model(), []
    engine = Engine(model, slots=2, budget=2, record=events.append)
    request = engine.submit(asking(prompt=6, new=9))
    for _ in range(steps):
        engine.step()
    assert state(engine, request) == when
    with counting(model) as counts:
        assert engine.cancel(request)
        assert not engine.cancel(request)
        assert state(engine, request) == "gone"
        assert not engine.step()
    assert counts.forwards == 0
    assert (request.finish_reason, len(request.tokens)) == ("cancelled", tokens)
    assert [event.kind for event in events].count("cancelled") == 1
    assert not engine.slots.memory.any()
    assert engine.slots.lengths == [0, 0]
    again = Wish((1, 2, 3), 5)
    later = engine.submit(again.request(Request))
    run_all(engine)
    assert (later.tokens, later.finish_reason) == again.alone(model)


def test_cancelling_a_finished_or_unknown_request_does_nothing():
    engine = Engine(random_model())
    request = engine.submit(asking())
    run_all(engine)
    assert not engine.cancel(request)
    assert request.finish_reason == "max_new_tokens"
    stranger = asking()
    assert not engine.cancel(stranger)
    assert stranger.finish_reason is None
    assert engine.submit(stranger)


def test_a_stop_check_may_cancel_its_own_request_and_its_neighbours():
    """transformers #31963: a stop that was asked for from a callback was accepted and ignored."""
    model, events = random_model(seed=3), []
    engine = Engine(model, slots=4, record=events.append)

    def cancel_all_but_the_last(token):
        for request in requests[:3]:
            engine.cancel(request)

    wish = Wish((5, 6), 6)
    requests = [asking(2, 9), asking(3, 9, should_stop=cancel_all_but_the_last), asking(4, 9)]
    requests.append(wish.request(Request))
    for request in requests:
        engine.submit(request)
    run_all(engine)
    assert [r.finish_reason for r in requests[:3]] == ["cancelled"] * 3
    assert [len(r.tokens) for r in requests[:3]] == [1, 1, 0]
    assert (requests[3].tokens, requests[3].finish_reason) == wish.alone(model)
    check_events(events)


def test_a_cancel_while_others_of_the_same_prefill_are_still_to_be_served():
    """The first leaves before the second is decoding in name, and a half read one stands behind.

    If that one then takes a slot of those that decode, it is fed without a budget.
    """
    model, events = random_model(seed=3), []
    engine = Engine(model, slots=3, budget=6, record=events.append)

    def cancel_the_first(token):
        engine.cancel(first)

    first = asking(1, 9, should_stop=cancel_the_first)
    several = [Wish((5,), 6), Wish(tuple(range(14)), 2)]  # the last one is cut to 2 tokens
    requests = [wish.request(Request) for wish in several]
    for request in [first, *requests]:
        engine.submit(request)
    run_all(engine)
    assert first.finish_reason == "cancelled"
    assert [(r.tokens, r.finish_reason) for r in requests] == [w.alone(model) for w in several]
    read = [event.tokens for event in events if event.kind == "prefilled"]
    assert read == [1, 1, 2, 6, 6]


# ---------------------------------------------------------------- failures


class Refusing:
    """A model that raises when a token is among those it is fed."""

    def __init__(self, model, token: int):
        self.model, self.token = model, token
        self.config, self.wte, self.head = model.config, model.wte, model.head

    def hidden(self, ids, cache=None):
        result = self.model.hidden(ids, cache)  # so the cache has been written and has advanced
        if (ids == self.token).any():
            raise RuntimeError(f"token {self.token} broke the model")
        return result


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("culprit", [0, 1, 3])
def test_a_request_that_breaks_the_model_fails_alone(culprit, policy):
    model = random_model(seed=4)
    several = [Wish((1, 2, n), 9, (("temperature", 1.5), ("seed", n))) for n in range(4, 8)]
    expected = [wish.alone(model) for wish in several]
    tokens = [token for tokens, _ in expected for token in tokens]
    fatal = next(t for t in range(32) if t not in tokens and t not in (0, 1, 2, 4, 5, 6, 7))
    engine = Engine(Refusing(model, fatal), slots=3, policy=policy)
    broken = Request([3, fatal, 3], 9, greedy, never)
    requests = [wish.request(Request) for wish in several]
    for request in [*requests[:culprit], broken, *requests[culprit:]]:
        engine.submit(request)
    run_all(engine)
    assert (broken.finish_reason, broken.tokens) == ("failed", [])
    assert str(broken.error) == f"token {fatal} broke the model"
    assert [(r.tokens, r.finish_reason) for r in requests] == expected


def test_a_request_that_breaks_the_model_while_it_is_half_read_fails():
    """Its first chunk is lost, so reading on would make a text from half a prompt."""
    engine = Engine(Refusing(random_model(), 9), slots=1, budget=2)
    request = engine.submit(Request([9, 1, 2, 3], 3, greedy, never))
    run_all(engine)
    assert (request.finish_reason, request.tokens) == ("failed", [])


def test_an_unknown_id_fails_with_the_models_own_words():
    engine = Engine(random_model())
    request = engine.submit(Request([1, 32], 3, greedy, never))
    run_all(engine)
    assert "id 32 is not a token" in str(request.error)


@pytest.mark.parametrize("part", ["choose", "should_stop"])
def test_a_sampler_or_stop_check_that_raises_fails_alone(part):
    model = random_model(seed=6)
    wish = Wish((1, 2), 8, (("temperature", 1.5), ("seed", 3)))
    broken = asking()

    def fail(_):
        raise KeyError("mine")

    setattr(broken, part, fail)
    engine = Engine(model, slots=3)
    requests = [wish.request(Request), broken, wish.request(Request), wish.request(Request)]
    for request in requests:
        engine.submit(request)
    run_all(engine)
    assert broken.finish_reason == "failed"
    assert isinstance(broken.error, KeyError)
    assert len(broken.tokens) == (1 if part == "should_stop" else 0)
    for request in requests:
        if request is not broken:
            assert (request.tokens, request.finish_reason) == wish.alone(model)
            assert request.error is None


def test_a_keyboard_interrupt_in_the_model_loses_no_token():
    """A notebook's cell is interrupted, and run again."""
    model = random_model(seed=7)
    wish = Wish((1, 2, 3), 9)
    engine = Engine(model, slots=2)
    requests = [engine.submit(wish.request(Request)) for _ in range(3)]
    hidden, calls = model.hidden, []

    def interrupted(ids, cache):
        calls.append(ids)
        result = hidden(ids, cache)
        if len(calls) % 3 == 1:
            raise KeyboardInterrupt
        return result

    model.hidden = interrupted
    interrupts = 0
    while True:
        try:
            if not engine.step():
                break
        except KeyboardInterrupt:
            interrupts += 1
    model.hidden = hidden
    assert interrupts > 5
    assert [(r.tokens, r.finish_reason) for r in requests] == [wish.alone(model)] * 3


# ---------------------------------------------------------------- stream


def test_a_stream_yields_the_tokens_of_one_request_while_all_go_on():
    model = random_model(seed=8)
    wish, other = Wish((1, 2), 9), Wish((3, 4, 5), 9)
    engine = Engine(model)
    request, neighbour = (engine.submit(w.request(Request)) for w in (wish, other))
    assert list(engine.stream(request)) == wish.alone(model)[0]
    run_all(engine)
    assert neighbour.tokens == other.alone(model)[0]
    assert list(engine.stream(neighbour)) == neighbour.tokens  # it has ended: all there is


def test_several_streams_take_turns():
    model = random_model(seed=8)
    several = [Wish((n,), 9) for n in range(1, 5)]
    engine = Engine(model, slots=2)
    streams = [engine.stream(engine.submit(wish.request(Request))) for wish in several]
    made = list(zip(*streams, strict=True))
    assert [list(tokens) for tokens in zip(*made, strict=True)] == [
        wish.alone(model)[0] for wish in several
    ]


def test_closing_a_stream_cancels_its_request():
    """llama.cpp #13262: the client went away and generation went on."""
    engine = Engine(random_model())
    request = engine.submit(asking(new=9))
    stream = engine.stream(request)
    next(stream)
    stream.close()
    assert (request.finish_reason, len(request.tokens)) == ("cancelled", 1)
    assert not engine.step()


def test_a_stream_of_a_request_that_was_not_submitted_says_so():
    with pytest.raises(ValueError, match="submit it first"):
        next(Engine(random_model()).stream(asking()))


def test_between_steps_the_caller_is_not_in_inference_mode():
    engine = Engine(random_model())
    for _ in engine.stream(engine.submit(asking())):
        assert not torch.is_inference_mode_enabled()


# ---------------------------------------------------------------- events and times


def check_events(events: list[Event]) -> None:
    """Each request's events are in the one order that there is, and end exactly once."""
    assert [event.time for event in events] == sorted(event.time for event in events)
    assert [event.step for event in events] == sorted(event.step for event in events)
    for request in {event.request for event in events}:
        own = [event for event in events if event.request is request]
        kinds = [event.kind for event in own]
        last = request.finish_reason
        assert kinds[0] == "submitted"
        assert kinds[-1] == (last if last in ("cancelled", "failed") else "finished")
        assert sum(kind in ("finished", "cancelled", "failed") for kind in kinds) == 1
        middle = "".join({"admitted": "a", "prefilled": "p", "token": "t"}[k] for k in kinds[1:-1])
        assert middle == "".join(sorted(middle))
        assert middle.count("a") == (1 if middle else 0)
        assert middle.count("t") == len(request.tokens) == len(request.token_times)
        assert sum(event.tokens for event in own) <= len(request.prompt)
        if request.tokens:
            assert sum(event.tokens for event in own) == len(request.prompt)
        for event in own[1:]:
            assert (event.slot is None) == (event.kind != "admitted" and not middle)


@pytest.mark.parametrize("policy", POLICIES)
def test_events_tell_the_whole_story_in_order(policy):
    events: list[Event] = []
    engine = Engine(random_model(seed=9), slots=3, budget=4, policy=policy, record=events.append)
    requests = [asking(prompt, new) for prompt, new in ((3, 4), (9, 2), (1, 0), (2, 7), (16, 1))]
    requests += [asking(4, 5), asking(2, 2), Request([1, 99], 2, greedy, never)]
    for request in requests:
        engine.submit(request)
    engine.step()
    engine.cancel(requests[3])
    for _ in range(3):
        engine.step()
    engine.cancel(requests[5])
    run_all(engine)
    check_events(events)
    admitted = [event.request for event in events if event.kind == "admitted"]
    assert admitted == [r for r in requests if r in admitted]  # first come, first served
    in_one_slot = Counter((e.step, e.slot) for e in events if e.kind == "token")
    assert max(in_one_slot.values()) <= 2  # a prefill after a decode may find the slot of one gone


def test_times_of_a_request_follow_from_its_events():
    events: list[Event] = []
    engine = Engine(random_model(), record=events.append)
    request, none = engine.submit(asking(new=4)), engine.submit(asking(new=0))
    run_all(engine)
    tokens = [event.time for event in events if event.kind == "token"]
    assert len(request.gaps) == 3
    assert all(gap > 0 for gap in request.gaps)
    assert sum(request.gaps) == pytest.approx(tokens[-1] - tokens[0], abs=1e-3)
    assert 0 < request.time_to_first_token <= tokens[0] - events[0].time + 1e-3
    assert (none.time_to_first_token, none.gaps) == (None, [])


# ---------------------------------------------------------------- the file


def test_the_step_of_the_engine_fits_a_screen():
    """The turn of the loop, from the plan to the stop check."""
    source = inspect.getsource(Engine)
    assert source[source.index("def step") : source.index("def cancel")].count("\n") < 75


def test_the_scheduler_knows_no_tensors():
    source = inspect.getsource(Scheduler)
    names = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    assert not names & {"torch", "Slots", "GPT"}


def test_the_stage_runs_by_itself_from_any_folder(tmp_path):
    result = subprocess.run(
        [sys.executable, REPO / "stages/stage6_serving.py"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "Once upon a time" in result.stdout
    assert "mixed: " in result.stdout
    assert "Same tokens: True" in result.stdout
    assert result.stderr == ""


def test_stage_4_and_stage_6_make_the_same_story_in_float32():
    """On the embedded model, with its tokenizer, at a seed without near ties."""
    model, tokenizer = stage6.load(stage6.TINY)
    ids = tokenizer.encode("Once upon a time")

    def stop():
        return stage6.StopCheck(tokenizer, tokenizer.eot_token)

    engine = Engine(model, slots=3)
    requests = [Request(ids, 120, Sampler(0.8, seed=i), stop()) for i in range(5)]
    for request in requests:
        engine.submit(request)
    run_all(engine)
    for i, request in enumerate(requests):
        steps = stage4.generate(model, torch.tensor([ids]), 120, Sampler(0.8, seed=i), stop())
        assert request.tokens == [step.token for step in steps]


# ---------------------------------------------------------------- load, and the benchmarks


@pytest.mark.parametrize("policy", POLICIES)
def test_under_load_every_request_is_accounted_for_and_memory_stays_flat(policy):
    """ATOM PR #1441: finished requests were kept. The script does the same with 2,000."""
    model, tokenizer = stage6.load(stage6.TINY)
    tally, engine = serving_load.run(model, tokenizer, 160, slots=4, policy=policy, seed=2)
    assert tally.outcomes.total() == 160
    assert tally.outcomes["cancelled"] == tally.cancelled.total() > 5
    assert {"failed", "eos", "max_new_tokens"} <= set(tally.outcomes)
    assert not engine.scheduler.waiting
    assert not engine.scheduler.running
    assert not engine.slots.memory.any()
    objects, tensors = zip(*tally.memory, strict=True)
    assert max(objects) - min(objects) < 2000  # requests in the queue and in slots come and go
    assert max(tensors) == min(tensors)


def test_the_load_script_prints_where_all_went(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["serving_load.py", "--requests", "40", "--slots", "2"])
    serving_load.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("40 requests arrived")
    outcomes = [line for line in lines[1:] if re.match(r" +\d", line) and "of the" not in line]
    assert sum(int(line.split()[0]) for line in outcomes) == 40
    assert sum(line.startswith("memory after quarter") for line in lines) == 4


def test_the_engine_fills_the_rows_that_static_batches_leave_empty():
    """Counted, not timed: fewer forwards on ragged lengths, and nothing to win on equal ones."""
    model = random_model(GPTConfig(64, 32, n_layer=1, n_head=1, n_embd=4))
    jobs = serving_speed.workloads(32, count=16, longest=28)
    work = {name: serving_speed.work(model, jobs[name], 4)[0] for name in ("ragged", "equal")}
    forwards = {name: [c.forwards for c in counts.values()] for name, counts in work.items()}
    alone, static, continuous = forwards["ragged"]
    assert alone > 2 * static > 2 * continuous
    assert forwards["equal"][2] >= forwards["equal"][1]


def test_times_of_different_tokens_are_refused(monkeypatch):
    def wrong(model, jobs, slots):
        return [[] for _ in jobs]

    monkeypatch.setitem(serving_speed.WAYS, "continuous", (wrong, "", "", ""))
    with pytest.raises(RuntimeError, match="different tokens"):
        serving_speed.work(random_model(), [([1], 2)], 2)
