"""How fast is the engine? Stage 6 against static batches and one request at a time.

    python benchmarks/serving_speed.py                 the embedded model
    python benchmarks/serving_speed.py --write         puts the first table into the README, too
    python benchmarks/serving_speed.py --model 124m    GPT-2's smallest shape, random weights: slow

Three workloads: ragged, texts of 4 to 200 new tokens, submitted at once; equal, texts of one
length; one by one, each submitted when the one before it has ended. Continuous batching is for the
first. Each is run by stage 4 (one at a time), by stage 5 (static batches of as many as there are
slots) and by the engine, greedily, without an end-of-text id, so that lengths are what they are.

Times are medians over rounds in which the three take turns, so that a busy moment hits all of them.
All have to make the same tokens. Work is counted: a row is a text in a forward, and the rows that
are missing to a full batch are the waiting that the engine removes. Speed is in times that of one
at a time.
"""

import random
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from model import GPT, GPTConfig
from stages import stage4_kv_cache as stage4
from stages import stage5_batching as stage5
from stages.stage2_sampling import greedy
from stages.stage6_serving import Engine, Request
from support.checkpoint import TINY, load
from support.counting import Counts, counting
from support.layout import lay_out_for_decoding
from support.shell import Parser

REPO = Path(__file__).resolve().parent.parent
MARK = "<!-- printed by benchmarks/serving_speed.py -->"

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


# What runs it, and how the README presents that.
WAYS = {
    "one at a time": (one_at_a_time, "[4](stages/stage4_kv_cache.py)",
                      "one request at a time", "this is what the others are compared with"),
    "static batches": (static_batches, "[5](stages/stage5_batching.py)",
                       "several requests in one forward pass", "tokens of each request"),
    "continuous": (continuous, "[6](stages/stage6_serving.py)",
                   "a server's loop: a queue, slots, continuous batching, cancelling",
                   "tokens of each request"),
}  # fmt: skip


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


def work(
    model: GPT, jobs: list[Job], slots: int, *, one_by_one: bool = False
) -> tuple[dict[str, Counts], dict[str, Callable[[], list[list[int]]]]]:
    """Run the jobs once in each way: the work of each, counted, and a function to run it again.

    With one_by_one, a way learns of a job when the one before it has ended. RuntimeError if the
    ways make different tokens: no time of theirs would be worth a figure.
    """

    def runner(way: Callable[..., list[list[int]]]) -> Callable[[], list[list[int]]]:
        if one_by_one:
            return lambda: [way(model, [job], slots)[0] for job in jobs]
        return lambda: way(model, jobs, slots)

    runs = {name: runner(way) for name, (way, *_) in WAYS.items()}
    counts, texts = {}, []
    for name, run in runs.items():
        with counting(model) as counts[name]:
            texts.append(run())
    if any(made != texts[0] for made in texts):
        raise RuntimeError("the ways made different tokens: no time of theirs is worth a figure")
    return counts, runs


def table(counts: dict[str, Counts]) -> str:
    """The work of each way. It is counted, so it is the same on every machine."""
    lines = [
        "| stage | adds | stays equal | forwards | rows in each |",
        "|---|---|---|---:|---:|",
    ]
    for name, (_, stage, adds, equal) in WAYS.items():
        count = counts[name]
        lines.append(
            f"| {stage} | {adds} | {equal} | {count.forwards:,} "
            f"| {count.head_rows / count.forwards:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = Parser(description="How fast is the engine?")
    parser.add_argument("--model", choices=("tiny", "124m"), default="tiny")
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument("--slots", type=int, default=8, help="default 8")
    parser.add_argument("--requests", type=int, default=64, help="of the workload; default 64")
    parser.add_argument("--longest", type=int, default=200, help="new tokens; default 200")
    parser.add_argument("--write", action="store_true", help="renew the table in README.md")
    args = parser.parse_args()
    if args.model == "tiny":
        torch.set_num_threads(1)  # the fastest for a model this small
        model, _ = load(TINY)
    else:
        torch.manual_seed(0)
        model = GPT(GPTConfig()).eval()
    lay_out_for_decoding(model)  # as sample.py does
    tables = {}
    for name, jobs in workloads(model.config.vocab_size, args.requests, args.longest).items():
        counts, runs = work(model, jobs, args.slots, one_by_one=name == "one by one")
        seconds: dict[str, list[float]] = {way: [] for way in runs}
        for _ in range(args.rounds):
            for way, run in runs.items():
                start = perf_counter()
                run()
                seconds[way].append(perf_counter() - start)
        medians = {way: median(times) for way, times in seconds.items()}
        tables[name] = table(counts)
        tokens = sum(new for _, new in jobs)
        print(f"{name}: {len(jobs)} requests, {tokens} new tokens, {args.slots} slots, same tokens")
        for way, time in medians.items():
            gain = medians["one at a time"] / time
            print(f"{way}: {tokens / time:.0f} tokens/s, {gain:.1f} times one at a time")
        print(f"\n{tables[name]}\n", flush=True)
    if args.write:
        readme = (REPO / "README.md").read_text(encoding="utf-8")
        before, rest = readme.split(MARK)
        after = rest[rest.index("<!-- end -->") :]
        readme = f"{before}{MARK}\n{tables['ragged']}\n{after}"
        (REPO / "README.md").write_text(readme, encoding="utf-8")


if __name__ == "__main__":
    main()
