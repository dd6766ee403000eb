"""The lessons run, say what they said, and their checkers tell right answers from wrong ones."""

import base64
import inspect
import math
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest
import torch
import transformers

from notebooks import suspect
from notebooks.checks import EXERCISES, check, lesson12, solutions
from notebooks.checks.__main__ import main as grade
from notebooks.checks.execute import answer_name, execute, lessons
from notebooks.checks.models import random_ids, random_model
from notebooks.checks.museum import MUSEUM
from stages import stage4_kv_cache
from stages.stage2_sampling import Sampler

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


@pytest.fixture(scope="module")
def executed(request):
    """The lessons that are asked for, run two at a time."""
    asked = "test_a_lesson_runs_and_its_stored_outputs_are_true"
    tests = [item for item in request.session.items if item.originalname == asked]
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield {test.callspec.params["file"]: pool.submit(execute, test.callspec.params["file"])
               for test in tests}  # fmt: skip


@pytest.mark.parametrize("file", lessons(), ids=lambda file: file.stem)
def test_a_lesson_runs_and_its_stored_outputs_are_true(file, executed):
    stored, fresh = nbformat.read(file, as_version=4), executed[file].result()
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
    right.write_text(f"from notebooks.checks.solutions import {name}\n", encoding="utf-8")
    museum = next(iter(MUSEUM[exercise])).__name__
    wrong.write_text(f"from notebooks.checks.museum import {museum} as {name}\n", encoding="utf-8")
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


@pytest.mark.parametrize("where", lesson12.BUGS)
def test_each_planted_bug_stands_once_in_the_suspect_file_and_shows_alone(where):
    planted, right = lesson12.BUGS[where]
    source = Path(suspect.__file__).read_text(encoding="utf-8")
    assert source.count(planted) == 1
    assert right not in source
    with pytest.raises(Exception):  # noqa: B017, PT011, whatever the bug makes the tests raise
        solutions.examine(lesson12.repaired(but=where))


def test_without_its_bugs_the_suspect_file_makes_the_tokens_of_the_stages():
    clean, model = lesson12.repaired(), random_model(block_size=32)
    prompts = [random_ids(tokens, model, seed=tokens)[0].tolist() for tokens in (1, 5, 3)]
    rules = [{"temperature": 0}, {"temperature": 0.8, "top_k": 5}, {"top_p": 0.7}]
    texts = []
    for seed, (prompt, rule) in enumerate(zip(prompts, rules, strict=True)):
        steps = stage4_kv_cache.generate(
            model, torch.tensor([prompt]), 12, Sampler(**rule, seed=seed), lambda token: None
        )
        texts.append(([step.token for step in steps], "max_new_tokens"))
        for chunk in (None, 2):
            own = clean.Rule(**rule, seed=seed)
            made = clean.generate(model, prompt, 12, own, clean.Stop(), chunk)
            assert made == texts[-1]
    own = [clean.Rule(**rule, seed=seed) for seed, rule in enumerate(rules)]
    assert clean.generate_batch(model, prompts, 12, own, [clean.Stop() for _ in own]) == texts
    end = texts[1][0][:4]
    stops = [clean.Stop(), clean.Stop(sequence=end[2:]), clean.Stop(eos=texts[2][0][0])]
    own = [clean.Rule(**rule, seed=seed) for seed, rule in enumerate(rules)]
    made = clean.generate_batch(model, prompts, 12, own, stops)
    assert made == [texts[0], (end, "sequence"), (texts[2][0][:1], "eos")]


def settings_in_use():
    """What the solution and the wrong answers hand to transformers, each once."""
    answers = (solutions.transformers_settings, *MUSEUM["12b"])
    made = [answer(*settings) for answer in answers for settings in lesson12.SETTINGS]
    return [settings for i, settings in enumerate(made) if settings not in made[:i]]


@pytest.mark.parametrize("settings", settings_in_use(), ids=str)
def test_the_checker_of_12b_tells_the_truth_about_transformers(settings):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=80, n_positions=64, n_embd=16, n_layer=1, n_head=2,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).double().eval()
    ids = torch.tensor([[3, 1, 2, 5]])
    try:
        made = model.generate(
            ids, **settings, output_logits=True, output_scores=True, return_dict_in_generate=True
        )
    except ValueError:
        with pytest.raises(ValueError):  # noqa: PT011, it is refused in either
            lesson12.what_generate_does(settings, torch.zeros(1, 80), ids.shape[1])
        return
    probs, new = lesson12.what_generate_does(settings, made.logits[0], ids.shape[1])
    assert made.sequences.shape[1] - ids.shape[1] == new
    theirs = made.scores[0].softmax(dim=1)
    if not settings.get("do_sample"):  # greedy takes the likeliest of the scores
        theirs = torch.zeros_like(theirs).scatter_(1, theirs.argmax(1, keepdim=True), 1)
    assert torch.allclose(probs, theirs)
