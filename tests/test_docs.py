"""What the pages say is what the code does, and every command they show runs."""

import doctest
import inspect
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import tomllib

import generate
from benchmarks import serving_speed, stage_costs
from model import GPT, GPTConfig
from support import corpus
from support.checkpoint import TINY

REPO = Path(__file__).parent.parent
README = (REPO / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [
    re.sub(r"\s+#.*", "", line)
    for language, block in BLOCKS
    if language == "sh"
    for line in block.splitlines()
]


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """A copy of the repository, with a model where the README's commands look for one."""
    folder = tmp_path_factory.mktemp("clone") / "repo"
    shutil.copytree(REPO, folder, ignore=shutil.ignore_patterns(".*", "out", "__pycache__"))
    shutil.copytree(TINY, folder / "path/to/gpt2")
    shutil.copytree(TINY, folder / "out/tiny")
    (folder / "bin").mkdir()
    (folder / "bin/python").write_text(
        f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8"
    )
    (folder / "bin/python").chmod(0o755)
    return folder


def test_every_example_of_the_decoding_page_gives_what_it_shows():
    page = str(REPO / "docs/decoding.md")
    result = doctest.testfile(page, module_relative=False)
    assert result.attempted > 25
    assert result.failed == 0


def test_the_loop_in_the_readme_is_the_one_in_generate_py():
    [loop] = [block for language, block in BLOCKS if language == "python"]
    assert textwrap.indent(loop, "    ") in inspect.getsource(generate.generate)
    assert len(loop.splitlines()) <= 10


def test_the_stage_table_in_the_readme_is_printed_by_its_command(monkeypatch, capsys):
    """Work is counted, so it is the same on every machine, and at each run."""
    monkeypatch.setattr(sys, "argv", ["stage_costs.py", "--rounds", "1"])
    stage_costs.main()
    table, times = capsys.readouterr().out.split("\n\n")
    assert len(table.splitlines()) == 7
    assert f"{stage_costs.MARK}\n{table}\n<!-- end -->" in README
    assert times.startswith("Time, as shares of stage 0's: 1.00, ")


def test_the_table_of_serving_in_the_readme_is_printed_by_its_command():
    """Lengths are fixed, so any model does the same work as the real one."""
    model = GPT(GPTConfig(block_size=256, vocab_size=1024, n_layer=1, n_head=1, n_embd=4)).double()
    jobs = serving_speed.workloads(1024, count=64, longest=200)["ragged"]
    counts, _ = serving_speed.work(model, jobs, slots=8)
    assert f"{serving_speed.MARK}\n{serving_speed.table(counts)}\n<!-- end -->" in README


def test_the_names_of_ours_on_the_serving_page_exist():
    page = (REPO / "docs/serving.md").read_text(encoding="utf-8")
    names = re.findall(r"`([\w.]+)`", "".join(re.findall(r"^\| (.*?) \|", page, re.MULTILINE)))
    source = "".join(
        (REPO / f"stages/stage{n}.py").read_text(encoding="utf-8")
        for n in ("5_batching", "6_serving")
    )
    assert len(names) > 20
    for name in names:
        for part in name.split("."):
            assert re.search(rf"\b{part}\b", source), name


def test_the_story_in_the_readme_is_one_that_the_grammar_knows():
    [story] = [block for language, block in BLOCKS if language == "text"]
    assert corpus.check(story.strip()) == []


def run(command: str, clone: Path) -> subprocess.CompletedProcess[str]:
    # Under `make test` a make inside would take itself for a part of it.
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    return subprocess.run(
        ["bash", "-c", f'PATH="$PWD/bin:$PATH"; {command}'],
        cwd=clone,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )


@pytest.mark.parametrize("command", [c for c in COMMANDS if re.search(r"\bpython sample\.py", c)])
def test_a_sample_command_of_the_readme_writes_text(command, clone):
    result = run(command.replace(".venv/bin/python", "python"), clone)
    assert len(result.stdout) > 20
    assert re.search(r"^\[\w+\] .* tokens/s; stage \d, seed \d+$", result.stderr, re.MULTILINE)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("make")])
def test_a_make_command_of_the_readme_runs_what_it_says(command, clone):
    """Only what it would run is looked at: `make test` would run this test again."""
    recipe = run(command.replace("make", "make --dry-run"), clone).stdout
    expected = {
        "make sample": 'python sample.py "Once upon a time"',
        "make test": "python -m pytest",
        "make train": "python train_tiny.py",
        "make lessons": "jupyter lab notebooks",
    }
    assert recipe.splitlines()[-1] == f".venv/bin/{expected[command]}"


def test_the_plain_pip_lines_do_what_make_does(clone):
    """They need a network, so they are compared with the recipe of make."""
    setup = run("make --dry-run .venv/ready-dev", clone).stdout.replace("python3", "python")
    setup = setup.replace(" --quiet --disable-pip-version-check", "").splitlines()
    lines = [c for c in COMMANDS if "venv .venv" in c or "-m pip" in c]
    assert len(lines) == 3
    assert [line for line in setup if not line.startswith("touch")] == lines


def test_running_installs_what_running_needs_and_no_more():
    """The exact versions of pyproject's dependencies in one file, of its dev extra in the other."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = [project["dependencies"], project["optional-dependencies"]["dev"]]
    for name, wanted in zip(("requirements.txt", "requirements-dev.txt"), bounds, strict=True):
        pinned = re.findall(r"^([\w-]+)==", (REPO / name).read_text(encoding="utf-8"), re.MULTILINE)
        assert sorted(pinned) == sorted(re.match(r"[\w-]+", bound)[0] for bound in wanted)
    recipe = run("make --dry-run sample", REPO).stdout
    assert "requirements-dev" not in recipe


def test_the_readme_shows_no_command_that_is_not_tested():
    tested = r"(\.venv/bin/)?python sample|make (sample|test|train|lessons)$"
    rest = [c for c in COMMANDS if not re.search(tested, c)]
    assert rest == [
        "python -m venv .venv",
        ".venv/bin/python -m pip install -r requirements.txt -e .",
        ".venv/bin/python -m pip install -r requirements-dev.txt",
        ".venv/bin/python -m pytest",
    ]


INLINE = [" ".join(c.split()) for c in re.findall(r"`(python [^`]*)`", README)]


@pytest.mark.parametrize("command", sorted(set(INLINE)))
def test_a_command_in_the_readmes_text_runs(command, clone):
    (clone / "FILE").write_text("\n\n".join(corpus.stories(40, seed=1)), encoding="utf-8")
    if "--data FILE" in command:
        command += " --steps 2 --n_embd 16 --block_size 16 --vocab_size 300 --threads 1"
    if "stage_costs" in command:
        command += " --rounds 1"
    if "benchmarks/speed" in command:
        command += " --quick"
    if "memory" in command:
        command += " --model checkpoints/tiny"
    if "story_quality" in command:
        command += " --count 1"
    if "serving_speed" in command:
        command += " --rounds 1 --requests 8 --longest 10"
    assert run(command, clone).stdout
