"""A trace as one web page that needs no network: step through the turns with keys or a slider."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tracing.record import Record

TEMPLATE = Path(__file__).with_name("page.html")


def trace_page(prompt: str, records: Sequence[Record]) -> str:
    """The page, its data within it as JSON."""
    data = json.dumps({"prompt": prompt, "records": [asdict(record) for record in records]})
    # A "<" could end the script element, or begin a comment in it; in JSON, \u003c means the same.
    return TEMPLATE.read_text(encoding="utf-8").replace("TRACE", data.replace("<", "\\u003c"), 1)
