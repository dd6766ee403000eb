"""Draw docs/loop.png, the README's picture: one turn of the loop on the embedded model.

python docs/draw_loop.py
"""

from pathlib import Path

import torch
from matplotlib.figure import Figure

from stages.stage2_sampling import Sampler
from stages.stage3_stopping import StopCheck
from stages.stage4_kv_cache import generate
from support.atomic import write_whole
from support.checkpoint import TINY, load
from support.plots import BLUE, GREY, ORANGE, png
from tracing.record import Record, trace

PROMPT = "Once upon a time, a"


def one_turn() -> Record:
    """The first turn after the prompt."""
    torch.set_num_threads(1)
    model, tokenizer = load(TINY)
    sampler = Sampler(temperature=0.8, seed=6)
    should_stop = StopCheck(tokenizer, tokenizer.eot_token)
    ids = torch.tensor([tokenizer.encode(PROMPT)])
    steps = generate(model, ids, 2, sampler, should_stop)
    turns = ((step.token, step.finish_reason) for step in steps)
    return next(trace(model, tokenizer, turns, sampler, should_stop, top=8))


def draw(record: Record) -> Figure:
    figure = Figure(figsize=(10, 4), layout="constrained")
    text, bars, after = figure.subplots(1, 3, width_ratios=(1, 1.5, 1))
    for axes in (text, after):
        axes.set_axis_off()
        axes.set(xlim=(0, 1), ylim=(0, 1))

    def chip(axes, y, label, color, weight="normal"):
        axes.text(
            0.5, y, label, ha="center", va="center", family="monospace", fontsize=12, weight=weight,
            bbox={"boxstyle": "round", "facecolor": "white", "edgecolor": color},
        )  # fmt: skip

    text.set_title("1  forward pass\nthe model reads the tokens", fontsize=11)
    heights = [0.93 - 0.13 * i for i in range(len(record.fed))]
    for y, token in zip(heights, record.fed_text, strict=True):
        chip(text, y, f'"{token}"', BLUE)
    arrow = {"arrowstyle": "->", "color": GREY, "linewidth": 2}
    text.annotate("", (1.1, 0.5), (0.8, 0.5), arrowprops=arrow, annotation_clip=False)

    bars.set_title("2  logits of the last position\nhow likely is each token next?", fontsize=11)
    names = [f'"{each.text}"' for each in record.candidates]
    chances = [100 * each.probabilities["model"] for each in record.candidates]
    colors = [ORANGE if each == record.chosen else BLUE for each in record.candidates]
    drawn = bars.barh(names, chances, color=colors)
    bars.bar_label(drawn, fmt="%.1f%%", padding=3, fontsize=9)
    bars.invert_yaxis()
    bars.set_xlim(0, 1.2 * max(chances))
    bars.set_xlabel(
        f"probability; the other {record.shapes['logits'][1] - len(names):,} are less likely"
    )
    bars.set_xticks([])
    bars.tick_params(axis="y", labelsize=11, labelfontfamily="monospace")
    bars.spines[["top", "right", "bottom"]].set_visible(False)

    after.set_title("3  choose   4  append\n5  stop check", fontsize=11)
    after.annotate("", (0.2, 0.75), (-0.1, 0.75), arrowprops=arrow, annotation_clip=False)
    chip(after, 0.75, f'"{record.chosen.text}"', ORANGE, "bold")
    after.text(
        0.5, 0.5, f"{PROMPT}$\\bf{{{record.chosen.text.replace(' ', chr(92) + ' ')}}}$",
        ha="center", va="center", fontsize=12,
    )  # fmt: skip
    after.text(
        0.5, 0.27, "not at its end:\nonce more, from 1", ha="center", va="center", color=GREY
    )
    return figure


if __name__ == "__main__":
    write_whole(Path(__file__).with_name("loop.png"), png(draw(one_turn())))
