"""Checkers of lesson 11: a scheduler's step, a cancel, and the test that finds lost slots."""

from collections import Counter
from collections.abc import Callable
from random import Random

import torch

from model import GPT
from notebooks.checks import museum
from notebooks.checks.evidence import Evidence, Failure, attempt, judge_test
from notebooks.checks.models import random_ids, random_model
from stages import stage4_kv_cache
from stages.stage2_sampling import greedy
from stages.stage6_serving import Engine, Request
from support.counting import counting


def check_next_step(answer: Callable[..., list[int]]) -> Evidence:
    """Play whole afternoons of arrivals, and compare each step with the rules."""
    random, steps, fed = Random(11), 0, 0
    for afternoon in range(30):
        slots = 1 + afternoon // 8
        budget = slots + random.randint(0, 6)
        running: list[list[int]] = []  # of its prompt still unread, of its new tokens still to make
        waiting: list[list[int]] = []
        for _ in range(25):
            if random.random() < 0.4:
                waiting.append([random.randint(1, 9), random.randint(1, 6)])
            reading, queue = [left for left, _ in running], [left for left, _ in waiting]
            target = _feeds(reading, queue, slots, budget)
            case = f"running {reading}, waiting {queue}, {slots} slots, budget {budget}"
            given = [*reading], [*queue]
            yours = attempt(case, _counts_from, answer, *given, slots, budget)
            if given != (reading, queue):
                raise Failure(case, "lists as they were", "other lists", "you wrote into them")
            if yours != target:
                why = _why_feeds(reading, queue, slots, budget, yours)
                raise Failure(case, target, yours, why)
            while len(running) < len(target):
                running.append(waiting.pop(0))
            for request, count in zip(running, target, strict=True):
                if request[0] == count or request[0] == 0:  # the prompt is read: a token is made
                    request[1] -= 1
                request[0] = max(0, request[0] - count)
            running = [request for request in running if request[1] > 0]
            steps, fed = steps + 1, fed + sum(target)
    return Evidence(
        True,
        f"passed: {steps} steps as the rules say, with 1 to 4 slots\n"
        f"  cost: {fed} token-positions, {fed / steps:.1f} a step",
    )


def _feeds(running: list[int], waiting: list[int], slots: int, budget: int) -> list[int]:
    rest, feeds = budget - running.count(0), []
    for place, left in enumerate(running + waiting):
        admitted = place >= len(running)
        if admitted and (place >= slots or not rest):
            break
        feeds.append(min(left, rest) if left else 1)
        rest -= feeds[-1] if left else 0
    return feeds


def _counts_from(answer: Callable[..., list[int]], *arguments: object) -> list[int]:
    return [int(count) for count in answer(*arguments)]


def _why_feeds(
    running: list[int], waiting: list[int], slots: int, budget: int, yours: list[int]
) -> str:
    left = running + waiting
    if len(yours) < len(running):
        return "one number for each running request, and then one for each that is admitted"
    if len(yours) > len(left):
        return "you feed more requests than there are"
    if len(yours) > slots:
        return f"{len(yours)} requests for {slots} slots: who finds none free goes on waiting"
    for place, count in enumerate(yours):
        if place < len(running) and left[place] == 0 and count != 1:
            return f"request {place} decodes: it feeds its newest token, 1, in every step"
        if place >= len(running) and count < 1:
            return f"request {place} is admitted and feeds nothing: it took a slot in vain"
        if count > (left[place] or 1):
            return f"request {place} has {left[place]} tokens left to read"
    if sum(yours) > budget:
        return f"{sum(yours)} tokens, over the budget of {budget}: decoding requests count, too"
    return "first come, first served: each prompt gets what the ones before it have left"


@torch.no_grad()
def check_cancel_request(answer: Callable[[Engine, Request], bool]) -> Evidence:
    """Cancel one of five requests in each state, beside an engine that cancels by itself."""
    model, fed, tried = random_model(block_size=32), 0, Counter()
    for state, steps in (("finished", 30), ("queued", 1), ("prefill", 2), ("decode", 3)):
        for victim in range(5):
            expected, chosen = _engine(model, steps)
            if _state(expected, chosen[victim]) != state:
                continue
            tried[state] += 1
            case = f"request {victim} of 5, {state}, after {steps} steps"
            engine, requests = _engine(model, steps)
            request = requests[victim]
            before = request.finish_reason, request.tokens
            target = expected.cancel(chosen[victim])
            yours = attempt(case, answer, engine, request)
            if yours is not target:
                why = "it had ended: there is nothing to cancel" if not target else "it was there"
                raise Failure(case, target, yours, why)
            if request.finish_reason != chosen[victim].finish_reason:
                why = "its first reason counts" if before[0] else "whoever waits for it must know"
                raise Failure(
                    f"{case}, finish_reason", repr(chosen[victim].finish_reason),
                    repr(request.finish_reason), why,
                )  # fmt: skip
            if request.tokens != before[1]:
                why = "what was made so far stays"
                raise Failure(f"{case}, its tokens", before[1], request.tokens, why)
            fed += _same_to_the_end(case, engine, requests, expected, chosen, victim)
    return Evidence(
        True,
        f"passed: cancelled {tried['queued']} in the queue, {tried['prefill']} in prefill and "
        f"{tried['decode']} in decode, and {tried['finished']} that had finished stayed so\n"
        f"  cost: {fed} token-positions after the cancels, none for a cancelled one",
    )


def _engine(model: GPT, steps: int) -> tuple[Engine, list[Request]]:
    """Three slots and five requests, after some steps: one is half read after two."""
    engine = Engine(model, slots=3, budget=8)
    requests = []
    for number, tokens in enumerate((2, 3, 9, 4, 5)):
        prompt = random_ids(tokens, model, seed=number)[0].tolist()
        requests.append(engine.submit(Request(prompt, 4 + number, greedy, lambda token: None)))
    for _ in range(steps):
        engine.step()
    return engine, requests


def _state(engine: Engine, request: Request) -> str:
    if request.finish_reason:
        return "finished"
    if request in engine.scheduler.waiting:
        return "queued"
    return "decode" if request.decoding else "prefill"


def _same_to_the_end(
    case: str,
    engine: Engine,
    requests: list[Request],
    expected: Engine,
    chosen: list[Request],
    victim: int,
) -> int:
    """Let both engines run on; returns the token-positions of it."""
    with counting(expected.model) as target:
        while expected.step():
            pass
    with counting(engine.model) as yours:
        for _ in range(100):
            if not attempt(f"{case}, the engine's next step", engine.step):
                break
    for number, (request, right) in enumerate(zip(requests, chosen, strict=True)):
        if number != victim and request.tokens != right.tokens:
            why = "another request's tokens changed: do its keys lie in the slot it now has?"
            raise Failure(f"{case}, tokens of request {number}", right.tokens, request.tokens, why)
    if requests[victim].tokens != chosen[victim].tokens:
        why = "the engine goes on making tokens for it"
        raise Failure(f"{case}, its tokens", chosen[victim].tokens, requests[victim].tokens, why)
    if yours.positions != target.positions:
        why = "the engine goes on computing for it: only the client has stopped"
        raise Failure(f"{case}, token-positions afterwards", target.positions, yours.positions, why)
    last = Request([1, 2, 3], 5, greedy, lambda token: None)
    attempt(f"{case}, a new request", engine.submit, last)
    for _ in range(10):
        attempt(f"{case}, a new request", engine.step)
    steps = stage4_kv_cache.generate(
        engine.model, torch.tensor([[1, 2, 3]]), 5, greedy, lambda token: None
    )
    alone = [step.token for step in steps]
    if last.tokens != alone:
        raise Failure(f"{case}, then a new request", alone, last.tokens, "its slot was not as new")
    return target.positions


MakeEngine = Callable[[int], Engine]


def check_leaks_no_slot(answer: Callable[[MakeEngine], bool]) -> Evidence:
    """Hand the learner's test the right engine, then each that loses something."""
    model = random_model(block_size=32)
    with counting(model) as counts:
        for kind in (Engine, *museum.BROKEN_ENGINES):
            right = kind is Engine
            case = "a right engine" if right else kind.__name__
            why = f"your test misses {case}: {kind.__doc__}"
            if right:
                why = "your test rejects a right engine"
            judge_test(case, right, why, answer, _maker(kind, model))
    return Evidence(
        True,
        f"passed: your test accepts a right engine and finds {len(museum.BROKEN_ENGINES)} that "
        f"lose something\n  cost: {counts.forwards} forwards, {counts.positions} token-positions",
    )


def _maker(kind: type[Engine], model: GPT) -> MakeEngine:
    class Bounded(kind):
        """Gives up after many steps, so that no test waits for ever for a lost request."""

        def step(self) -> bool:
            if self.steps >= 1000:
                raise RuntimeError("1,000 steps, and still not done")
            return super().step()

    return lambda slots: Bounded(model, slots, budget=8)
