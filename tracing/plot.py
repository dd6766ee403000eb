"""A trace as a picture: what each turn of the loop could choose from, and what it chose."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font

from support.plots import ORANGE, png
from tracing.record import Candidate, Record


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
    labels = [drawable(record.chosen.text) for record in records]
    chances.set_xticks(steps, labels, rotation=90, parse_math=False)  # "$" is no formula here
    for axes in (shares, chances):
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    return png(figure)


def drawable(text: str) -> str:
    """The text, with codes such as \\n and \\u65e5 for what the font can't show."""
    font = get_font(findfont(FontProperties()))
    shown = (c if c.isprintable() and font.get_char_index(ord(c)) else ascii(c)[1:-1] for c in text)
    return "".join(shown)


def after_filters(candidate: Candidate) -> float:
    return list(candidate.probabilities.values())[-1]
