"""Does the engine hold under load? Random arrivals and cancellations, and where all of them went.

    python benchmarks/serving_load.py [--requests N] [--policy P] [--slots N] [--seed N]

Requests arrive at random on the embedded model, a little faster than it serves them, so that the
queue fills and empties. One in five is cancelled a random while later: in the queue, in prefill, in
decode, or too late. Some can't run: a prompt that is too long, an id that doesn't exist, a sampler
that raises. Nobody keeps a request that has ended, so memory has to stay flat.
"""

import gc
import random
from collections import Counter
from dataclasses import dataclass, field
from statistics import quantiles
from time import perf_counter

import tiktoken
import torch

from model import GPT
from stages.stage2_sampling import Choose, Sampler
from stages.stage3_stopping import StopCheck
from stages.stage6_serving import POLICIES, Engine, Request
from support import corpus
from support.checkpoint import TINY, load
from support.shell import Parser


@dataclass
class Tally:
    """What became of the requests; `outcomes` counts each of them once."""

    outcomes: Counter[str] = field(default_factory=Counter)
    cancelled: Counter[str] = field(default_factory=Counter)  # where the cancelled ones were
    waits: list[float] = field(default_factory=list)  # seconds to the first token
    gaps: list[float] = field(default_factory=list)  # longest gap between tokens of each request
    tokens: int = 0
    steps: int = 0
    rows: int = 0  # requests that ran, summed over steps
    seconds: float = 0.0
    memory: list[tuple[int, int]] = field(default_factory=list)  # `living`, after each quarter

    def ended(self, request: Request) -> None:
        self.outcomes[request.finish_reason or "running"] += 1
        self.tokens += len(request.tokens)
        if request.time_to_first_token is not None:
            self.waits.append(request.time_to_first_token)
            self.gaps.append(max(request.gaps, default=0.0))


def broken(logits: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("this sampler is broken")


def random_request(
    rng: random.Random, stories: list[list[int]], tokenizer: tiktoken.Encoding
) -> Request:
    """A request for the rest of a story; 3 of 100 can't run."""
    prompt = rng.choice(stories)[: rng.randint(1, 100)]
    choose: Choose = Sampler(rng.choice([0, 0.8, 1.2]), seed=rng.randrange(1000))
    fault = rng.random()
    if fault < 0.01:
        prompt = [0] * 1000
    elif fault < 0.02:
        prompt = [*prompt, tokenizer.n_vocab]
    elif fault < 0.03:
        choose = broken
    should_stop = StopCheck(tokenizer, tokenizer.eot_token, [". "] if rng.random() < 0.2 else [])
    return Request(prompt, rng.choice([0, 1, 10, 40, 100]), choose, should_stop)


def living() -> tuple[int, int]:
    """How many objects Python keeps, and how many bytes those of them take that are tensors."""
    gc.collect()
    things = gc.get_objects()
    return len(things), sum(t.nbytes for t in things if issubclass(type(t), torch.Tensor))


def run(
    model: GPT, tokenizer: tiktoken.Encoding, requests: int, slots: int, policy: str, seed: int
) -> tuple[Tally, Engine]:
    """Send that many requests through an engine; RuntimeError if it loses one or ends one twice."""
    rng, tally = random.Random(seed), Tally()
    stories = [tokenizer.encode(story) for story in corpus.stories(50, seed)]
    engine = Engine(model, slots, queue_limit=16, budget=32, policy=policy)
    alive: list[Request] = []  # submitted, not seen to end
    giving_up: dict[int, list[Request]] = {}  # step -> whose callers lose patience then
    arrived, next_arrival = 0, 0.0
    start = perf_counter()
    while arrived < requests or alive:
        while arrived < requests and next_arrival <= engine.steps:
            arrived += 1
            if arrived % (requests // 4) == 0:
                tally.memory.append(living())
            next_arrival += rng.expovariate(slots / 20)  # a request takes a slot for about 20 steps
            request = random_request(rng, stories, tokenizer)
            if engine.scheduler.full:
                tally.outcomes["refused: the queue is full"] += 1
                continue
            try:
                alive.append(engine.submit(request))
            except ValueError:
                tally.outcomes["refused: never fits"] += 1
                continue
            if rng.random() < 0.2:
                giving_up.setdefault(engine.steps + rng.randint(0, 30), []).append(request)
        for request in giving_up.pop(engine.steps, []):
            waited, decoding = request in engine.scheduler.waiting, request.decoding
            if engine.cancel(request):
                tally.cancelled["queue" if waited else "decode" if decoding else "prefill"] += 1
        tally.rows += len(engine.scheduler.running)
        engine.step()
        for request in alive:
            if request.finish_reason:
                tally.ended(request)
        alive = [request for request in alive if not request.finish_reason]
    tally.seconds, tally.steps = perf_counter() - start, engine.steps
    if tally.outcomes.total() != requests:
        raise RuntimeError(f"{requests} requests came and {tally.outcomes.total()} ended")
    return tally, engine


def main() -> None:
    parser = Parser(description="Does the engine hold under load?")
    parser.add_argument("--requests", type=int, default=2000, help="default 2000")
    parser.add_argument("--slots", type=int, default=8, help="default 8")
    parser.add_argument("--policy", choices=POLICIES, default="mixed")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)  # the fastest for a model this small
    model, tokenizer = load(TINY)
    tally, _ = run(model, tokenizer, args.requests, args.slots, args.policy, args.seed)

    print(f"{args.requests} requests arrived. Each ended once:")
    for outcome, count in sorted(tally.outcomes.items()):
        print(f"{count:6} {outcome}")
    for what, cancelled in sorted(tally.cancelled.items()):
        print(f"{cancelled:6} of the cancelled were in {what}")
    speed = tally.tokens / tally.seconds
    print(f"{tally.tokens} tokens in {tally.seconds:.1f} s: {speed:.0f} a second")
    print(f"{tally.rows / tally.steps:.1f} of {args.slots} slots taken, on average over the steps")
    for what, seconds in (("time to first token", tally.waits), ("longest gap", tally.gaps)):
        median, high = (quantiles(seconds, n=100)[percent - 1] for percent in (50, 99))
        print(f"{what}: median {1000 * median:.1f} ms, 99 of 100 below {1000 * high:.1f} ms")
    for quarter, (objects, tensors) in enumerate(tally.memory, start=1):
        print(f"memory after quarter {quarter}: {objects} objects, {tensors:,} bytes of tensors")


if __name__ == "__main__":
    main()
