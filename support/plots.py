"""The project's figures, each made as a PNG in memory so that it is written whole or not at all."""

from collections.abc import Sequence
from io import BytesIO
from statistics import mean

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from support.trace import Candidate, Record

BLUE, ORANGE, GREY = "#2a6fbb", "#d9822b", "#888888"


def plot_loss(
    training: Sequence[float],
    validation: Sequence[tuple[int, float]],
    floor: float | None,
) -> bytes:
    """Training loss, one a step, and validation loss, (step, loss), in nats per token."""
    steps, losses = zip(*validation, strict=True)
    stride = max(1, len(training) // 200)
    means = [mean(training[i : i + stride]) for i in range(0, len(training), stride)]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot([i * stride for i in range(len(means))], means, color=BLUE, label="training")
    axes.plot(steps, losses, color=ORANGE, marker="o", markersize=3, label="validation")
    if floor is not None:
        axes.axhline(floor, color=GREY, linestyle="--", label="entropy of the corpus: the floor")
    axes.set(xlabel="steps", ylabel="loss (nats per token)", yscale="log")
    axes.set_title("What is left to learn", loc="left")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return png(figure)


def plot_trace(records: Sequence[Record]) -> bytes:
    """For each turn, its candidates as shares of a bar with the chosen one marked; and its chance.

    Probabilities are those after the filters, which the choice was made from.
    """
    figure = Figure(figsize=(max(7, 0.24 * len(records) + 1.5), 6), layout="constrained")
    shares, chances = figure.subplots(2, sharex=True, height_ratios=(3, 2))
    steps = [record.step for record in records]
    blues = matplotlib.colormaps["Blues"](np.linspace(0.75, 0.25, 8))
    for record in records:
        bottom = 0.0
        for each, color in zip(record.candidates, blues, strict=False):
            height = after_filters(each)
            chosen = each == record.chosen
            shares.bar(
                record.step,
                height,
                bottom=bottom,
                color=ORANGE if chosen else color,
                edgecolor="white",
                linewidth=0.5,
            )
            bottom += height
        shares.bar(record.step, 1 - bottom, bottom=bottom, color="#e6e6e6")
    shares.set(ylabel="probability", ylim=(0, 1))
    shares.set_title("The candidates of each turn, likeliest below; orange is chosen", loc="left")
    chances.plot(steps, [after_filters(record.chosen) for record in records], "o-", color=ORANGE)
    chances.set(ylabel="probability", ylim=(0, 1.05), xlabel="the text, token by token")
    chances.set_title("How likely the chosen token was", loc="left")
    chances.set_xlim(0.3, len(records) + 0.7)
    chances.set_xticks(steps, [repr(record.chosen.text)[1:-1] for record in records], rotation=90)
    for axes in (shares, chances):
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    return png(figure)


def after_filters(candidate: Candidate) -> float:
    return list(candidate.probabilities.values())[-1]


def png(figure: Figure) -> bytes:
    """The figure as the contents of a PNG file."""
    file = BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return file.getvalue()
