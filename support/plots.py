"""The project's figures, each made as a PNG in memory so that it is written whole or not at all."""

from collections.abc import Sequence
from io import BytesIO
from statistics import mean

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

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


def png(figure: Figure) -> bytes:
    """The figure as the contents of a PNG file."""
    file = BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return file.getvalue()
