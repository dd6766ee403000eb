"""How fast is the engine? Stage 6 against static batches and one request at a time.

    python benchmarks/serving_speed.py                 the embedded model
    python benchmarks/serving_speed.py --model 124m    GPT-2's smallest shape, random weights: slow

Three workloads: ragged, texts of 4 to 200 new tokens, submitted at once; equal, texts of one
length; one by one, each submitted when the one before it has ended. Continuous batching is for the
first. Each is run by stage 4 (one at a time), by stage 5 (static batches of as many as there are
slots) and by the engine, greedily, without an end-of-text id, so that lengths are what they are.

Times are medians over rounds in which the three take turns, so that a busy moment hits all of them.
All have to make the same tokens. Work is counted: a row is a text in a forward, and the rows that
are missing to a full batch are the waiting that the engine removes.
"""

import argparse
import random
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch

from model import GPT, GPTConfig
from stages import stage4_kv_cache as stage4
from stages import stage5_batching as stage5
from stages.stage2_sampling import greedy
from stages.stage6_serving import Engine, Request
from support.checkpoint import TINY, load
from support.trace import counting

Job = tuple[list[int], int]  # a prompt, and how many new tokens


def no_end(token: int) -> None:
    """A stop check that never ends a text."""


def one_at_a_time(model: GPT, jobs: list[Job], slots: int) -> list[list[int]]:
    texts = []
    for prompt, new in jobs:
        steps = stage4.generate(model, torch.tensor([prompt]), new, greedy, no_end)
        texts.append([step.token for step in steps])
    return texts


def static_batches(model: GPT, jobs: list[Job], slots: int) -> list[list[int]]:
    texts = []
    for first in range(0, len(jobs), slots):
        batch = [stage5.Request(*job, greedy, no_end) for job in jobs[first : first + slots]]
        texts += [request.tokens for request in stage5.generate(model, batch)]
    return texts


def continuous(model: GPT, jobs: list[Job], slots: int) -> list[list[int]]:
    engine = Engine(model, slots, queue_limit=len(jobs))
    requests = [engine.submit(Request(*job, greedy, no_end)) for job in jobs]
    while engine.step():
        pass
    return [request.tokens for request in requests]


def each_after_the_other(way: Callable[..., list[list[int]]]) -> Callable[..., list[list[int]]]:
    """Give a way of running only one job to know of at a time."""
    return lambda model, jobs, slots: [way(model, [job], slots)[0] for job in jobs]


WAYS = {
    "one at a time": one_at_a_time,
    "static batches": static_batches,
    "continuous": continuous,
}


def workloads(vocab_size: int, count: int, longest: int) -> dict[str, list[Job]]:
    """Prompts of 4 to 32 random ids; ragged: from 4 to `longest` new tokens, evenly, shuffled."""
    rng = random.Random(1)
    prompts = [rng.choices(range(vocab_size), k=rng.randint(4, 32)) for _ in range(count)]
    lengths = [4 + (longest - 4) * i // (count - 1) for i in range(count)]
    rng.shuffle(lengths)
    mean = sum(lengths) // count
    equal = [([*prompt, *prompt * 8][:16], mean) for prompt in prompts]
    ragged = list(zip(prompts, lengths, strict=True))
    return {"ragged": ragged, "equal": equal, "one by one": ragged[: count // 8]}


def compare(model: GPT, name: str, jobs: list[Job], slots: int, rounds: int) -> dict[str, float]:
    """Run a workload in all ways; prints a table, returns median seconds."""
    ways = WAYS
    if name == "one by one":
        ways = {way: each_after_the_other(run) for way, run in WAYS.items()}
    counts, texts = {}, {}
    for way, run in ways.items():
        with counting(model) as counts[way]:
            texts[way] = run(model, jobs, slots)
    if any(made != texts["one at a time"] for made in texts.values()):
        raise RuntimeError("the ways made different tokens: no time of theirs is worth a figure")
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, run in ways.items():
            start = perf_counter()
            run(model, jobs, slots)
            seconds[way].append(perf_counter() - start)
    medians = {way: median(times) for way, times in seconds.items()}
    tokens = sum(map(len, texts["continuous"]))
    print(f"\n{name}: {len(jobs)} requests, {tokens} new tokens, {slots} slots, same tokens")
    print("| way | forwards | rows each | tokens/s | times as fast as one at a time |")
    print("|---|---:|---:|---:|---:|")
    for way, count in counts.items():
        print(
            f"| {way} | {count.forwards} | {count.head_rows / count.forwards:.2f} "
            f"| {tokens / medians[way]:.0f} | {medians['one at a time'] / medians[way]:.2f} |"
        )
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast is the engine?")
    parser.add_argument("--model", choices=("tiny", "124m"), default="tiny")
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument("--slots", type=int, default=8, help="default 8")
    parser.add_argument("--requests", type=int, default=64, help="of the workload; default 64")
    parser.add_argument("--longest", type=int, default=200, help="new tokens; default 200")
    args = parser.parse_args()
    if args.model == "tiny":
        torch.set_num_threads(1)  # the fastest for a model this small
        model, _ = load(TINY)
    else:
        torch.manual_seed(0)
        model = GPT(GPTConfig()).eval()
    for name, jobs in workloads(model.config.vocab_size, args.requests, args.longest).items():
        compare(model, name, jobs, args.slots, args.rounds)


if __name__ == "__main__":
    main()
