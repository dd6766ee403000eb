"""Imports go down, floor by floor, and no file reaches for another's private names."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).parent.parent
FLOORS = [
    {"model"},
    {"support", "corpus"},
    {"generate", "stages"},
    {"tracing", "serving"},
    {"sample", "serve", "train_tiny"},
    {"notebooks", "benchmarks", "docs", "tests"},
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def sources() -> dict[str, str]:
    """The code of every file and of every lesson, by its path in the repository."""
    found: dict[str, str] = {}
    for room in FLOOR:
        files = [*REPO.glob(f"{room}.py"), *(REPO / room).rglob("*.py")]
        found |= {str(file.relative_to(REPO)): file.read_text(encoding="utf-8") for file in files}
    for file in (REPO / "notebooks").glob("*.ipynb"):
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        found[str(file.relative_to(REPO))] = re.sub(r"(?m)^[%!].*", "pass", "\n".join(code))
    return found


def imported(node: ast.AST) -> list[str]:
    """The modules that an import statement may load: stages, and stages.stage1_last_logits."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def stage_number(module: str) -> int | None:
    """Which stage a module or a file is; generate.py is stage 0."""
    found = re.match(r"(?:stages[./]stage(\d)|(generate)(?:\.|$))", module)
    return found and int(found[1] or 0)


def private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def private_names(tree: ast.AST) -> set[str]:
    """The private names that a file defines: functions, classes, variables and attributes."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
    return {name for name in names if private(name)}


def breaches(files: dict[str, str]) -> Iterator[str]:
    """Each line that breaks a rule of the house, with the rule."""
    trees = {path: ast.parse(code) for path, code in files.items()}
    defined = {path: private_names(tree) for path, tree in trees.items()}
    for path, tree in trees.items():
        room = path.split("/")[0].removesuffix(".py")
        elsewhere = set().union(*(names for other, names in defined.items() if other != path))
        for node in ast.walk(tree):
            at = f"{path}:{getattr(node, 'lineno', 0)}"
            for module in imported(node):
                top = module.split(".")[0]
                if FLOOR.get(top, -1) > FLOOR[room]:
                    yield f"{at} imports {module}, which is above it"
                mine, theirs = stage_number(path), stage_number(module)
                if mine is not None and theirs is not None and theirs >= mine:
                    yield f"{at} imports {module}, which is no earlier stage"
                if top in FLOOR and private(module.split(".")[-1]):
                    yield f"{at} imports {module}, which is private"
            if isinstance(node, ast.Attribute) and node.attr in elsewhere - defined[path]:
                yield f"{at} reaches for {node.attr}, which is private to another file"


def test_every_import_goes_down_and_no_file_reaches_for_anothers_private_names():
    assert list(breaches(sources())) == []


@pytest.mark.parametrize(
    ("path", "line", "rule"),
    [
        ("model.py", "import support", "imports support, which is above it"),
        ("support/a.py", "from stages import stage1_x", "imports stages, which is above it"),
        ("support/a.py", "from generate import generate", "imports generate, which is above it"),
        (
            "stages/stage3_a.py",
            "from tracing.record import trace",
            "tracing.record, which is above",
        ),
        ("tracing/a.py", "import sample", "imports sample, which is above it"),
        ("sample.py", "from tests.helpers import never", "imports tests.helpers, which is above"),
        ("stages/stage2_a.py", "from stages.stage3_b import c", "stage3_b, which is no earlier"),
        ("stages/stage2_a.py", "from stages import stage3_b", "stage3_b, which is no earlier"),
        ("generate.py", "from stages.stage1_a import b", "stage1_a, which is no earlier stage"),
        ("sample.py", "from support.shell import _x", "support.shell._x, which is private"),
        ("sample.py", "import support.shell\nsupport.shell._hidden()", "sample.py:2 reaches for"),
        ("sample.py", "def f():\n    import tests", "sample.py:2 imports tests, which is above it"),
    ],
)
def test_a_line_that_breaks_a_rule_is_named(path, line, rule):
    found = list(breaches({path: line, "support/shell.py": "def _hidden(): pass"}))
    assert any(rule in breach for breach in found)
    assert all(breach.startswith(f"{path}:") for breach in found)


def test_what_the_design_allows_is_no_breach():
    files = {
        "stages/stage2_a.py": "import torch\nfrom stages.stage1_b import c\nimport generate",
        "support/a.py": "from corpus import a\nfrom support.b import c\nfrom model import GPT",
        "tests/test_a.py": "import sample\nfrom notebooks.checks import museum",
        "serving/a.py": "class A:\n    def f(self): return self._b\n    def _b(self): return 1",
    }
    assert list(breaches(files)) == []


def test_every_room_of_the_repository_has_a_floor():
    folders = [path for path in REPO.iterdir() if path.is_dir() and path.name[0] != "."]
    rooms = {path.name for path in folders if next(path.rglob("*.py"), None)} - {"build", "out"}
    assert rooms | {file.stem for file in REPO.glob("*.py")} <= set(FLOOR)
