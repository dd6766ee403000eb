"""Run lessons from top to bottom, with the solutions in the exercise cells.

    python -m notebooks.checks.execute         all of them, and store the outputs
    python -m notebooks.checks.execute 03 08   these

What is stored are the outputs alone: the exercise cells keep their stubs.
"""

import asyncio
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent.parent


def lessons() -> list[Path]:
    """The notebooks, in reading order."""
    return sorted(FOLDER.glob("[0-9][0-9]_*.ipynb"))


def answer_name(stub: str) -> str:
    """The name of the function or class that an exercise cell asks for."""
    return re.findall(r"^(?:def|class) (\w+)", stub, re.MULTILINE)[-1]


def execute(file: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a fresh run; its sources are as they were."""
    notebook = nbformat.read(file, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    sources = [cell.source for cell in code]
    for cell in code:
        if "exercise" in cell.metadata.get("tags", []):
            cell.source = f"from notebooks.checks.solutions import {answer_name(cell.source)}"
    # What a cell prints arrives in pieces, cut now here and now there: they are joined.
    folder = {"metadata": {"path": str(FOLDER)}}
    client = NotebookClient(notebook, resources=folder, coalesce_streams=True)
    asyncio.run(client.async_execute())  # unlike its execute(), in any thread
    for cell, source in zip(code, sources, strict=True):
        cell.source = source
        cell.metadata.pop("execution", None)  # when each cell ran: noise in every diff
    return notebook


def main(numbers: list[str]) -> None:
    for file in lessons():
        if not numbers or file.name[:2] in numbers:
            nbformat.write(execute(file), file)
            print(file.name)


if __name__ == "__main__":
    main(sys.argv[1:])
