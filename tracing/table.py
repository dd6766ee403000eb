"""A trace as a table for the terminal, 100 columns wide: one turn of the loop under another."""

from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tracing.record import Candidate, Record

WIDTHS = {"": 4, "forward": 20, "last logits": 33, "choose, append": 15, "stop check": 20}


class TraceTable:
    """Prints records as they come, in colour on a terminal and plain elsewhere."""

    def __init__(self, file: TextIO):
        # In a notebook rich would leave the file alone and show each row as HTML of its own.
        self.console = Console(
            file=file, width=100, highlight=False, markup=False, emoji=False, force_jupyter=False
        )
        self.console.print(
            "Each turn of the loop: forward, last logits, choose, append, stop check.\n"
            "Beside a candidate: its probability as the model gives it, and after the filters.\n"
        )
        self._row(*(Text(name, style="bold") for name in WIDTHS))

    def add(self, record: Record) -> None:
        """Print one turn."""
        self._row(
            Text(str(record.step), style="bold"),
            forward(record),
            Text("\n").join(candidate(each, record.chosen) for each in record.candidates),
            choice(record),
            stop_check(record),
        )

    def _row(self, *cells: Text) -> None:
        grid = Table.grid(padding=(0, 2, 0, 0))
        for width in WIDTHS.values():
            grid.add_column(width=width, no_wrap=True, overflow="ellipsis")
        grid.add_row(*cells)
        self.console.print(grid)


def forward(record: Record) -> Text:
    """What the model read, and what was in the cache."""
    many = len(record.fed)
    lines = [f"{many} tokens" if many > 1 else f"1 token: {quoted(record.fed_text[0])}"]
    if record.cache_after is None:
        lines.append("no cache")
    else:
        lines.append(f"cache {record.cache_before} to {record.cache_after}")
    return Text("\n".join([*lines, f"{record.milliseconds:.1f} ms"]))


def candidate(each: Candidate, chosen: Candidate) -> Text:
    """A line for one token: rank, text, probability before and after the filters."""
    before, *_, after = each.probabilities.values()
    line = f"{each.rank:>4} {quoted(each.text)[:13]:<13}{percent(before):>7}"
    line += f"{percent(after) if after else 'dropped':>8}"
    style = "bold green" if each == chosen else "" if after else "dim"
    return Text(line, style=style)


def choice(record: Record) -> Text:
    """The chosen token, and from how many."""
    length = (record.cache_after or len(record.fed)) + 1
    return Text(
        f"{quoted(record.chosen.text)}\nof {record.kept:,} left\nnow {length} tokens",
        style="green",
    )


def stop_check(record: Record) -> Text:
    """Whether the text ends here, and what may not be shown yet."""
    if record.finish_reason:
        return Text(record.finish_reason, style="bold red")
    if not record.held:
        return Text("go on")
    missing = f"\nmissing {quoted(record.missing)}" if record.missing else ""
    return Text(f"go on\nheld {quoted(record.held)}{missing}", style="yellow")


def quoted(text: str) -> str:
    """A token with its spaces visible, and what can't be printed, such as a line end, escaped."""
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return '"' + "".join(shown) + '"'


def percent(probability: float) -> str:
    """0.994 as 99.4%; what rounds to nothing as <0.1%."""
    return f"{probability:.1%}" if probability >= 0.0005 else "<0.1%"
