"""Stage 6: a server's loop. Requests come and go while it runs: continuous batching.

The loop is still forward pass, logits of the last position, choose, append, stop check. One turn of
it is a method now, `Engine.step`, and between two turns the batch may change: who has finished
gives up a slot, and the next in the queue gets it at once. Stage 5's batch shrinks until its
longest text is done; this one stays full as long as anybody waits.

Read it in this order: a `Request` is what one caller wants; the `Scheduler` decides who waits, who
runs in which slot, and what the next step does, and knows no tensors; the `Slots` of stage 5 are
the cache; the `Engine` runs the loop.

- Prefill and decode are the same forward pass: a request's ids that are not yet cached are fed, the
  whole prompt at first, then one new token after the other. Who has cached all of its prompt is
  decoding.
- A long prompt is fed in chunks, over several steps, and the others decode in between.
- Running requests take the first slots, the decoding ones before those in prefill. So either kind
  is a slice of the cache and no forward copies it; when a slot falls free, the last one moves in.

Saves: the time in which slots stand empty. Costs: a prefill beside a decode step makes that step
longer, and memory is reserved for `slots` texts of full length. Doesn't help: requests that come
one by one, or that all have the same length. Stays equal: the tokens of each request, as from stage
4 alone, whoever its neighbours are, and whenever they come, go, fail or are cancelled.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch

from model import GPT
from stages import stage5_batching as stage5
from stages.stage2_sampling import Sampler
from stages.stage3_stopping import StopCheck
from stages.stage5_batching import Slots, last_positions, pad
from support.checkpoint import TINY, load
from support.counting import counting
from support.tokenizer import decode

POLICIES = ("mixed", "prefill_first", "decode_first")
PATIENCE = 16  # prefill steps in a row that a decoding request waits for, at most


@dataclass(eq=False)
class Request(stage5.Request):
    """Stage 5's request, and what happened to it. Times are seconds of `time.perf_counter`.

    finish_reason is None until it ends, then one of stage 5's, or "cancelled", or "failed": its
    sampler, its stop check or the model raised `error`.
    """

    cached: int = field(default=0, init=False)  # how many of its ids the cache holds
    error: Exception | None = field(default=None, init=False)
    submitted_at: float = field(default=math.nan, init=False)  # NaN before it is
    token_times: list[float] = field(default_factory=list, init=False)

    @property
    def decoding(self) -> bool:
        """All of its prompt is cached; what is fed now are its new tokens."""
        return self.cached >= len(self.prompt)

    @property
    def time_to_first_token(self) -> float | None:
        """From submission; None while there is no token."""
        return self.token_times[0] - self.submitted_at if self.token_times else None

    @property
    def gaps(self) -> list[float]:
        """Between each token and the next."""
        return [after - before for before, after in pairwise(self.token_times)]


class Scheduler:
    """Who waits, who runs in which slot, and what the next step does; first come, first served.

    slots        how many requests run at once; `running[i]` is in slot i
    queue_limit  how many may wait
    budget       how many token-positions one prefill forward may have, pads counted
    policy       mixed: each step decodes, then prefills;
                 prefill_first: a step prefills if there is anything to prefill, else it decodes;
                 decode_first: a step decodes while anybody does, and only then fills all slots
                 again, which makes it a static batch

    Nobody starves. A decoding request waits PATIENCE steps at most. The first in the queue is
    admitted, once a slot is free and the prompt before it is read, by mixed in the same step, by
    prefill_first in the next step but one at the latest, by decode_first when all that decode have
    ended, each of which takes a token every step.
    """

    def __init__(self, slots: int, queue_limit: int, budget: int, policy: str):
        for name, value in (("slots", slots), ("queue_limit", queue_limit), ("budget", budget)):
            if value < 1:
                raise ValueError(f"{name} is {value}: it must be 1 or more")
        if policy not in POLICIES:
            raise ValueError(f"policy is {policy!r}: it must be one of {', '.join(POLICIES)}")
        self.slots, self.queue_limit, self.budget, self.policy = slots, queue_limit, budget, policy
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.prefilling = True  # what the last step did, where a step does one of the two
        self.delayed = 0  # prefill steps in a row that somebody decoding has waited for

    @property
    def full(self) -> bool:
        """No further request may wait."""
        return len(self.waiting) >= self.queue_limit

    @property
    def decoding(self) -> int:
        """How many requests decode: these have the slots from 0 on."""
        return sum(request.decoding for request in self.running)

    def turn(self) -> tuple[str, ...]:
        """What this step does, in this order."""
        if self.policy == "mixed":
            return "decode", "prefill"  # in this order: who finishes makes room for the next
        in_prefill = len(self.running) > self.decoding
        admits = self.waiting and len(self.running) < self.slots
        if not self.decoding:
            self.prefilling = True
        elif self.delayed == PATIENCE or not (in_prefill or admits):
            self.prefilling = False
        elif self.policy == "prefill_first":
            self.prefilling = True
        self.delayed = self.delayed + 1 if self.prefilling and self.decoding else 0
        return ("prefill",) if self.prefilling else ("decode",)

    def plan(self, kind: str) -> tuple[slice, list[int]]:
        """The slots of the next forward of that kind, and how many tokens each of them feeds.

        A prefill admits requests from the queue. budget=64: prompts of 10, 9 and 30 tokens feed 10,
        9 and 21, since a third row of more would be padded to 3 * 22 = 66 positions. Whoever comes
        behind a prompt that was cut waits, so one at most is left half read.
        """
        first = self.decoding
        if kind == "decode":
            return slice(0, first), [len(r.ids) - r.cached for r in self.running[:first]]  # 1 each
        free = self.slots - len(self.running)
        counts: list[int] = []
        for request in self.running[first:] + list(self.waiting)[:free]:
            rows, left = len(counts) + 1, len(request.prompt) - request.cached
            if rows * max(counts, default=1) > self.budget:
                break
            counts.append(min(left, self.budget // rows))
            if counts[-1] < left:
                break
        while len(self.running) < first + len(counts):
            self.running.append(self.waiting.popleft())
        return slice(first, first + len(counts)), counts

    def remove(self, request: Request) -> list[tuple[int, int]]:
        """Take a running request out; the moves, (from slot, to slot), that close the gap.

        Two at most: the last that decodes moves in, and the last in prefill into its place.
        """
        moves, gap = [], self.running.index(request)
        for last in (self.decoding - 1, len(self.running) - 1):
            if last > gap:
                self.running[gap] = self.running[last]
                moves.append((last, gap))
                gap = last
        self.running.pop()
        return moves


class Event(NamedTuple):
    """Something that happened to a request."""

    kind: str  # submitted, admitted, prefilled, token; at last finished, cancelled or failed
    request: Request
    step: int  # counted from 1; 0 is before the first
    time: float  # seconds of time.perf_counter
    slot: int | None  # None while it waits
    tokens: int  # of its prompt, how many this step fed; for all kinds but prefilled 0


class Engine:
    """The loop for many requests: submit them, and step until nothing is left to do.

    `record` is called with each Event. One thread makes all calls; from inside a step, a stop check
    may submit and cancel, too.
    """

    def __init__(
        self,
        model: GPT,
        slots: int = 8,
        *,
        queue_limit: int = 64,
        budget: int = 64,
        policy: str = "mixed",
        record: Callable[[Event], None] | None = None,
    ):
        self.model, self.record, self.steps = model, record, 0
        self.scheduler = Scheduler(slots, queue_limit, budget, policy)
        self.slots = Slots(model, slots, capacity=model.config.block_size)

    def submit(self, request: Request) -> Request:
        """Put a request into the queue; one that has no token to make ends at once.

        Raises ValueError, and leaves the request as it was, if the queue is full or if the request
        could never run.
        """
        if self.scheduler.full:
            raise ValueError(
                f"the queue is full, {self.scheduler.queue_limit} requests wait: "
                "run some steps and submit again, or use a higher queue_limit"
            )
        request.start(self.model.config.block_size)
        request.submitted_at = perf_counter()
        self._record("submitted", request)
        if request.finish_reason:
            self._record("finished", request)
        else:
            self.scheduler.waiting.append(request)
        return request

    @torch.inference_mode()
    def step(self) -> bool:
        """One turn of the loop for all that run; False if there was nothing to do."""
        self.steps += 1
        worked = False
        for kind in self.scheduler.turn():
            rows, counts = self.scheduler.plan(kind)
            requests = self.scheduler.running[rows]
            for request in requests:
                if not request.cached:
                    self._record("admitted", request)
            if requests:
                worked = True
                results = self._forward(rows, counts)
                for request, count in zip(requests, counts, strict=True):
                    request.cached += count  # of all, before any of them can leave
                for request, count, result in zip(requests, counts, results, strict=True):
                    self._take(request, count, result)
                for request in requests:
                    if request.finish_reason:
                        self._leave(request)
        return worked

    def _forward(self, rows: slice, counts: list[int]) -> list[torch.Tensor | Exception]:
        """Logits of each row's last position, (1, V), or what the model raised for that row."""
        requests = self.scheduler.running[rows]
        new = [r.ids[r.cached : r.cached + n] for r, n in zip(requests, counts, strict=True)]
        # The requests know how far they are: a forward that broke off may have advanced the slots.
        self.slots.lengths[rows] = [r.cached for r in requests]
        cache = self.slots.view(rows, counts)
        try:
            ids = pad(new, self.slots.memory.device)  # (B, T)
            hidden = self.model.hidden(ids, cache)  # forward pass: (B, T, C)
            logits = self.model.head(last_positions(hidden, counts))  # of last positions: (B, V)
            return list(logits.split(1))
        except Exception as error:
            if len(requests) == 1:
                return [error]
        # One request broke the forward pass of all. Alone, each shows whether it was the one.
        alone = [slice(row, row + 1) for row in range(rows.start, rows.stop)]
        return [self._forward(row, [n])[0] for row, n in zip(alone, counts, strict=True)]

    def _take(self, request: Request, count: int, result: torch.Tensor | Exception) -> None:
        """What a forward that read `count` of its ids means for one request.

        What its sampler or its stop check raises ends this request and no other.
        """
        if request.finish_reason:  # a neighbour's stop check has cancelled it
            return
        try:
            if isinstance(result, Exception):
                raise result
            if request.cached - count < len(request.prompt):
                self._record("prefilled", request, count)
            if not request.decoding:  # there is more of its prompt to read
                return
            token = int(request.choose(result))  # choose
            request.ids.append(token)  # append
            request.token_times.append(perf_counter())
            self._record("token", request)
            reason = request.should_stop(token) or request.at_limit()  # stop check
        except Exception as error:
            request.error, reason = error, "failed"
        if reason:
            self._end(request, reason)

    def cancel(self, request: Request) -> bool:
        """End a request now, wherever it is; its tokens stay. False if there is none to end."""
        cancelled = not math.isnan(request.submitted_at) and self._end(request, "cancelled")
        if cancelled:
            self._leave(request)
        return cancelled

    def _end(self, request: Request, reason: str) -> bool:
        """The first reason counts; False if there was one before."""
        if request.finish_reason:
            return False
        request.finish_reason = reason
        self._record(reason if reason in ("cancelled", "failed") else "finished", request)
        return True

    def _leave(self, request: Request) -> None:
        """Give up the place in the queue or the slot, which is then as new."""
        if request in self.scheduler.waiting:
            self.scheduler.waiting.remove(request)
        elif request in self.scheduler.running:
            for source, target in self.scheduler.remove(request):
                self.slots.move(source, target)
            self.slots.clear(len(self.scheduler.running))  # the first slot behind those in use

    def stream(self, request: Request) -> Iterator[int]:
        """Yield the request's tokens as they are made, stepping for all requests meanwhile.

        Closing the iterator, once it has begun, cancels the request. ValueError for a request that
        was never submitted.
        """
        shown = 0
        try:
            while True:
                while shown < len(request.tokens):
                    yield request.tokens[shown]
                    shown += 1
                if request.finish_reason:
                    return
                if not self.step():
                    raise ValueError("this request isn't running: submit it first")
        finally:
            self.cancel(request)

    def _record(self, kind: str, request: Request, tokens: int = 0) -> None:
        if self.record:
            running = self.scheduler.running
            slot = running.index(request) if request in running else None
            self.record(Event(kind, request, self.steps, perf_counter(), slot, tokens))


if __name__ == "__main__":
    torch.set_num_threads(1)  # the fastest for a model this small
    model, tokenizer = load(TINY)
    prompts = ["Once upon a time", "One windy day", "First", "A fox lived at the bridge"] * 4

    def run(policy: str) -> list[Request]:
        """All requests on four slots; prints what it took."""
        engine = Engine(model, slots=4, policy=policy)
        requests = [
            Request(
                tokenizer.encode(prompt),
                max_new_tokens=(10, 150)[i % 2],  # short and long ones take turns
                choose=Sampler(0.8, seed=i),
                should_stop=StopCheck(tokenizer, tokenizer.eot_token),
            )
            for i, prompt in enumerate(prompts)
        ]
        start = perf_counter()
        with counting(model) as counts:
            for request in requests:
                engine.submit(request)
            if policy == "mixed":
                tokens = list(engine.stream(requests[0]))
                print(repr(prompts[0] + decode(tokenizer, tokens)), requests[0].finish_reason)
            while engine.step():
                pass
        seconds = perf_counter() - start
        waits = [request.time_to_first_token or 0.0 for request in requests]
        rows = counts.head_rows / counts.forwards
        print(
            f"{policy:>13}: {seconds:.2f} s, {counts.forwards} forwards, {rows:.1f} rows each; to "
            f"the first token {median(waits):.2f} s (median), {max(waits):.2f} s (longest)"
        )
        return requests

    runs = [run(policy) for policy in POLICIES]
    print("Same tokens:", all([r.ids for r in run] == [r.ids for r in runs[0]] for run in runs))
