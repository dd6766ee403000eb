"""The lessons run, say what they said, and their checkers tell right answers from wrong ones."""

import base64
import inspect
import math
import re
from pathlib import Path

import nbformat
import pytest
import torch

from notebooks import solutions
from notebooks.checks import EXERCISES, check
from notebooks.checks.__main__ import main as grade
from notebooks.execute import answer_name, execute, lessons
from notebooks.museum import MUSEUM

WRONG = [
    (exercise, wrong, words) for exercise in MUSEUM for wrong, words in MUSEUM[exercise].items()
]
EXERCISE_CELLS = [
    (file, cell)
    for file in lessons()
    for cell in nbformat.read(file, as_version=4).cells
    if "exercise" in cell.metadata.get("tags", [])
]


@pytest.mark.parametrize("exercise", EXERCISES)
def test_a_checker_passes_its_solution(exercise):
    name, _ = EXERCISES[exercise]
    evidence = check(exercise, getattr(solutions, name))
    assert evidence.passed, evidence
    assert evidence.text.startswith("passed")


@pytest.mark.parametrize(
    ("exercise", "wrong", "words"), WRONG, ids=[f"{e}-{wrong.__name__}" for e, wrong, _ in WRONG]
)
def test_a_checker_names_the_symptom_of_a_wrong_answer(exercise, wrong, words):
    evidence = check(exercise, wrong)
    assert not evidence.passed
    assert words in evidence.text
    assert wrong.__doc__


def raises(*arguments):
    raise KeyError("no such thing")


ODD_ANSWERS = {
    "nothing": None,
    "a number": 3,
    "returns nothing": lambda *arguments: None,
    "returns text": lambda *arguments: "x",
    "returns NaN": lambda *arguments: math.nan,
    "returns an empty list": lambda *arguments: [],
    "returns a list of nothing": lambda *arguments: [None],
    "returns a scalar tensor": lambda *arguments: torch.tensor(0.0),
    "returns an empty tensor": lambda *arguments: torch.zeros(0),
    "returns a tensor of NaN": lambda *arguments: torch.full((1, 5), math.nan),
    "returns what it was given": lambda *arguments: arguments[0],
    "returns a rule that returns nothing": lambda *arguments: lambda logits: None,
    "takes other arguments": lambda: None,
    "raises": raises,
}


@pytest.mark.parametrize("odd", ODD_ANSWERS)
@pytest.mark.parametrize("exercise", EXERCISES)
def test_whatever_an_answer_is_a_checker_answers_with_evidence(exercise, odd):
    # Found so: 07c took NaN for right, and tensors of other shapes ended four checkers.
    assert check(exercise, ODD_ANSWERS[odd]).text.startswith("not yet")


def test_every_exercise_has_wrong_answers_in_the_museum():
    assert MUSEUM.keys() == EXERCISES.keys()
    assert all(len(wrong) >= 2 for wrong in MUSEUM.values())


def text_outputs(notebook: nbformat.NotebookNode) -> list[tuple[str, list[str]]]:
    """Source and text of each code cell, pictures and what varies from run to run left out."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "code" and "varies" not in cell.metadata.get("tags", []):
            texts = [
                out.text if "text" in out else out.data.get("text/plain") for out in cell.outputs
            ]
            found.append((cell.source, texts))
    return found


@pytest.mark.parametrize("file", lessons(), ids=lambda file: file.stem)
def test_a_lesson_runs_and_its_stored_outputs_are_true(file):
    stored, fresh = nbformat.read(file, as_version=4), execute(file)
    assert text_outputs(stored) == text_outputs(fresh)
    assert [cell.source for cell in stored.cells] == [cell.source for cell in fresh.cells]


@pytest.mark.parametrize("file", lessons(), ids=lambda file: file.stem)
def test_a_lesson_has_small_figures_and_no_path_of_this_machine(file):
    text = file.read_text(encoding="utf-8")
    assert str(Path(__file__).resolve().parent.parent) not in text
    assert "Traceback" not in text
    pictures = [
        output.data["image/png"]
        for cell in nbformat.read(file, as_version=4).cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    assert pictures
    assert max(len(base64.b64decode(picture)) for picture in pictures) <= 60_000


@pytest.mark.parametrize("file", lessons(), ids=lambda file: file.stem)
def test_each_exercise_of_a_lesson_is_checked_under_its_name(file):
    notebook = nbformat.read(file, as_version=4)
    asked = [answer_name(cell.source) for where, cell in EXERCISE_CELLS if where == file]
    calls = re.findall(
        r'^check\("(\w+)", (\w+)\)', "\n".join(c.source for c in notebook.cells), re.M
    )
    assert [
        (exercise, name)
        for exercise, (name, _) in EXERCISES.items()
        if exercise[:2] == file.name[:2]
    ] == calls
    assert [name for _, name in calls] == asked


@pytest.mark.parametrize("file", lessons(), ids=lambda file: file.stem)
def test_the_folded_solutions_are_those_that_are_tested(file):
    prose = "\n".join(
        cell.source
        for cell in nbformat.read(file, as_version=4).cells
        if cell.cell_type == "markdown"
    )
    folded = re.findall(r"<details>.*?```python\n(.*?)```", prose, re.DOTALL)
    names = [answer_name(cell.source) for where, cell in EXERCISE_CELLS if where == file]
    for name in names:
        assert inspect.getsource(getattr(solutions, name)) in folded


@pytest.mark.parametrize(
    ("file", "cell"), EXERCISE_CELLS, ids=[answer_name(cell.source) for _, cell in EXERCISE_CELLS]
)
def test_a_stub_is_no_answer_yet_and_the_evidence_says_so(file, cell):
    name = answer_name(cell.source)
    [exercise] = [key for key, (answer, _) in EXERCISES.items() if answer == name]
    notebook = nbformat.read(file, as_version=4)
    namespace: dict[str, object] = {}
    for each in notebook.cells:  # the imports that the stub's annotations need
        if each.cell_type == "code":
            exec(each.source, namespace)
            break
    exec(cell.source, namespace)
    assert not check(exercise, namespace[name]).passed


def test_an_answer_in_a_file_is_graded_from_the_shell(tmp_path, capsys):
    exercise, (name, _) = next(iter(EXERCISES.items()))
    right, wrong, empty, broken, ended = (
        tmp_path / f"{n}.py" for n in ("right", "wrong", "empty", "broken", "ended")
    )
    right.write_text(f"from notebooks.solutions import {name}\n", encoding="utf-8")
    museum = next(iter(MUSEUM[exercise])).__name__
    wrong.write_text(f"from notebooks.museum import {museum} as {name}\n", encoding="utf-8")
    empty.write_text("", encoding="utf-8")
    broken.write_text("1 / 0\n", encoding="utf-8")
    ended.write_text("raise SystemExit(0)\n", encoding="utf-8")
    files = (right, wrong, empty, broken, ended)
    assert [grade([exercise, str(file)]) for file in files] == [0, 1, 2, 2, 2]
    out, err = capsys.readouterr()
    assert "passed" in out
    assert "smallest failing case" in out
    assert f"has no {name}" in err
    assert "ZeroDivisionError" in err
    assert grade(["99z", "x.py"]) == 2
    assert grade([exercise, "no/such.py"]) == 2
