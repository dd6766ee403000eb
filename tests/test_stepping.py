"""What docs/stepping.md promises, seen in pdb; and that the configurations name what exists."""

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import generate
import model
from stages import stage2_sampling, stage4_kv_cache

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/stepping.md").read_text(encoding="utf-8")
SESSIONS = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def sessions() -> list[tuple[str, list[str], list[str]]]:
    """Command line, what is typed, and the answers to `p`; a session may be shown in parts."""
    found: list[tuple[str, list[str], list[str]]] = []
    for block in SESSIONS:
        lines = block.splitlines()
        if lines[0].startswith("python -m pdb"):
            found.append((lines.pop(0), [], []))
        _, typed, answers = found[-1]
        typed += [line.removeprefix("(Pdb) ") for line in lines if line.startswith("(Pdb)")]
        answers += [line for line in lines if not line.startswith("(Pdb)")]
    return found


@pytest.mark.parametrize(("command", "typed", "answers"), sessions())
def test_pdb_shows_what_the_page_says(command, typed, answers):
    result = subprocess.run(
        [sys.executable, *command.split()[1:]],
        cwd=ROOT,
        input="\n".join([*typed, "q"]) + "\n",
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    shown = [line.removeprefix("(Pdb) ") for line in result.stdout.splitlines()]
    assert [line for line in shown if line in answers] == answers
    assert "***" not in result.stdout  # pdb's mark of an error
    assert len(answers) >= 2


def test_the_page_names_functions_that_exist():
    names = set(
        re.findall(r"`((?:generate|GPT|KVCache|Sampler|Attention|apply|pick)[\w.]*)`", PAGE)
    )
    names -= {"generate.generate"}
    assert callable(generate.generate)
    assert len(names) >= 5
    for name in names:
        owner, _, method = name.partition(".")
        [module] = [
            each for each in (model, stage2_sampling, stage4_kv_cache) if owner in vars(each)
            and inspect.getmodule(vars(each)[owner]) is each
        ]  # fmt: skip
        assert not method or hasattr(getattr(module, owner), method)


def test_the_configurations_run_what_exists_with_arguments_that_it_takes():
    launch = json.loads((ROOT / ".vscode/launch.json").read_text(encoding="utf-8"))
    names = [each["name"] for each in launch["configurations"]]
    for name in names:
        assert f"| {name} |" in PAGE
    assert len(names) == 4
    for each in launch["configurations"]:
        if "program" in each:
            program = each["program"].replace("${workspaceFolder}", str(ROOT))
            result = subprocess.run(
                [sys.executable, program, *each["args"]],
                capture_output=True,
                encoding="utf-8",
                check=True,
            )
            assert result.stdout.startswith("Once upon a time")
        else:
            assert each["module"] == "notebooks.checks"
