"""What one story costs at each stage: README's stage table and docs/stages.png.

    python benchmarks/stage_costs.py            prints the table
    python benchmarks/stage_costs.py --write    puts table and figure where they belong, too

Every stage is asked for at most 200 tokens after "Once upon a time", greedily, on the embedded
model. Work is counted, and the table holds nothing else: it changes only when the code does. Times
are for the picture: medians over rounds in which the stages take turns, so that a busy moment hits
all of them, as shares of stage 0's, because no other figure survives a change of machine.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from matplotlib.figure import Figure

import generate as stage0
from model import GPT
from stages import stage1_last_logits, stage2_sampling, stage3_stopping, stage4_kv_cache
from stages.stage2_sampling import greedy
from stages.stage3_stopping import Step, StopCheck
from support.checkpoint import TINY, load
from support.counting import Counts, counting
from support.plots import BLUE, GREY, ORANGE, png
from support.shell import Parser

REPO = Path(__file__).resolve().parent.parent
MARK = "<!-- printed by benchmarks/stage_costs.py -->"
NEW_TOKENS = 200

ROWS = [
    ("[0](generate.py)", "the plain loop", "this is what the others are compared with"),
    ("[1](stages/stage1_last_logits.py)", "the head runs on the last position only", "tokens"),
    ("[2](stages/stage2_sampling.py)", "decoding rules", "tokens, with `choose=greedy`"),
    ("[3](stages/stage3_stopping.py)", "a stop check; the loop becomes an iterator",
     "tokens up to the end"),
    ("[4](stages/stage4_kv_cache.py)", "a KV cache: each token is read once", "tokens"),
]  # fmt: skip


def runs() -> tuple[GPT, list[Callable[[], list[int]]]]:
    """The model, and for each stage a function that makes its new tokens."""
    model, tokenizer = load(TINY)
    ids = torch.tensor([tokenizer.encode("Once upon a time")])

    def plain(loop: Callable[..., torch.Tensor], *choose: object) -> list[int]:
        return loop(model, ids, NEW_TOKENS, *choose)[0, ids.shape[1] :].tolist()

    def stepped(loop: Callable[..., Iterator[Step]]) -> list[int]:
        should_stop = StopCheck(tokenizer, tokenizer.eot_token)
        return [step.token for step in loop(model, ids, NEW_TOKENS, greedy, should_stop)]

    return model, [
        lambda: plain(stage0.generate),
        lambda: plain(stage1_last_logits.generate),
        lambda: plain(stage2_sampling.generate, greedy),
        lambda: stepped(stage3_stopping.generate),
        lambda: stepped(stage4_kv_cache.generate),
    ]


def measure(rounds: int) -> tuple[list[Counts], list[float]]:
    """The work of each stage, counted, and its median time in seconds."""
    model, stages = runs()
    counts, texts = [], []
    for stage in stages:
        with counting(model) as counted:
            texts.append(stage())
        counts.append(counted)
    if any(text != texts[0][: len(text)] for text in texts):
        raise RuntimeError("the stages made different tokens: no time of theirs is worth a figure")
    seconds: list[list[float]] = [[] for _ in stages]
    for _ in range(rounds):
        for stage, times in zip(stages, seconds, strict=True):
            start = perf_counter()
            stage()
            times.append(perf_counter() - start)
    return counts, [median(times) for times in seconds]


def table(counts: list[Counts]) -> str:
    """The work of each stage. It is counted, so it is the same on every machine."""
    lines = [
        "| stage | adds | stays equal | forwards | token-positions | rows of logits |",
        "|---|---|---|---:|---:|---:|",
    ]
    for (stage, adds, equal), count in zip(ROWS, counts, strict=True):
        lines.append(
            f"| {stage} | {adds} | {equal} | {count.forwards} | {count.positions:,} "
            f"| {count.head_rows:,} |"
        )
    return "\n".join(lines)


def figure(counts: list[Counts], seconds: list[float]) -> bytes:
    """Two bars a stage: token-positions fed to the model, and time, as shares of stage 0's."""
    fig = Figure(figsize=(7, 3.2), layout="constrained")
    axes = fig.subplots()
    labels = ["0 plain", "1 last logits", "2 sampling", "3 stopping", "4 KV cache"]
    bars = (
        ("token-positions fed", GREY, [count.positions / counts[0].positions for count in counts]),
        ("rows of logits", BLUE, [count.head_rows / counts[0].head_rows for count in counts]),
        ("time", ORANGE, [time / seconds[0] for time in seconds]),
    )
    for i, (label, color, shares) in enumerate(bars):
        at = [stage + 0.27 * (i - 1) for stage in range(len(labels))]
        drawn = axes.bar(at, shares, width=0.25, color=color, label=label)
        axes.bar_label(drawn, fmt="{:.2f}", fontsize=7)
    axes.set_xticks(range(len(labels)), labels)
    axes.set(ylabel="share of stage 0", ylim=(0, 1.15))
    axes.set_title("What one story costs", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return png(fig)


def main() -> None:
    parser = Parser(description="What one story costs at each stage.")
    parser.add_argument("--rounds", type=int, default=15, help="default 15")
    parser.add_argument("--write", action="store_true", help="renew README.md and docs/stages.png")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the fastest for a model this small
    counts, seconds = measure(args.rounds)
    print(table(counts))
    shares = ", ".join(f"{time / seconds[0]:.2f}" for time in seconds)
    print(f"\nTime, as shares of stage 0's: {shares}")
    if args.write:
        (REPO / "docs/stages.png").write_bytes(figure(counts, seconds))
        readme = (REPO / "README.md").read_text(encoding="utf-8")
        before, rest = readme.split(MARK)
        after = rest[rest.index("<!-- end -->") :]
        readme = f"{before}{MARK}\n{table(counts)}\n{after}"
        (REPO / "README.md").write_text(readme, encoding="utf-8")


if __name__ == "__main__":
    main()
