"""Flags and messages: one spelling in help and docs, and each reader's own language."""

import ast
import re
from pathlib import Path

import pytest

import sample
import train_tiny
from model import GPTConfig
from stages.stage2_sampling import Sampler
from support.shell import Parser, flags_for

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("model.py", "generate.py", "support", "corpus", "stages", "tracing", "serving")


def files(*names: str) -> list[Path]:
    """Python files of these rooms."""
    found = [
        [ROOT / name] if name.endswith(".py") else (ROOT / name).rglob("*.py") for name in names
    ]
    return [file for group in found for file in group]


def messages(file: Path) -> list[str]:
    """What the file may say in a ValueError or to a parser; values that are filled in are {}."""
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        name = getattr(node, "func", None)
        if getattr(name, "id", getattr(name, "attr", "")) in ("ValueError", "require", "error"):
            parts = [n for n in ast.walk(node) if isinstance(n, ast.Constant | ast.FormattedValue)]
            text = [n.value if isinstance(n, ast.Constant) else "{}" for n in parts]
            found.append(" ".join(str(part) for part in text))
    return found


def test_no_message_of_a_function_names_a_flag():
    """Someone who calls it from Python has no flags."""
    told = [
        (file.name, m) for file in files(*ROOMS) for m in messages(file) if file.stem != "shell"
    ]
    assert len(told) > 60
    assert [found for found in told if re.search(r"(^|\W)--[a-z]", found[1])] == []


@pytest.mark.parametrize("command", ["sample.py", "train_tiny.py"])
def test_no_message_of_a_command_names_an_argument(command):
    told = messages(ROOT / command)
    assert len(told) > 3
    assert [text for text in told if re.search(r"(?<!-)\b[a-z]+_[a-z]+(?!\.py)\b", text)] == []


def test_flags_for_translates_arguments_and_leaves_words_alone():
    cases = {
        "top_k is -1: it must be a whole number": "--top-k is -1: it must be a whole number",
        "shorten it or pass context='crop'": "shorten it or pass --context crop",
        "temperature is nan": "--temperature is nan",
        "the temperature of a text": "the temperature of a text",
        "n_embd 64: choose n_head": "--n-embd 64: choose --n-head",
        "prompt has 9 tokens, the model reads 8": "prompt has 9 tokens, the model reads 8",
    }
    for message, expected in cases.items():
        with (
            pytest.raises(ValueError, match=f"^{re.escape(expected)}$"),
            flags_for(["top_k", "context", "temperature", "n_embd", "n_head", "model"]),
        ):
            raise ValueError(message)


def test_in_python_the_same_message_names_arguments():
    with pytest.raises(ValueError, match=r"^top_k is -1"):
        Sampler(top_k=-1)
    with pytest.raises(ValueError, match=r"^n_embd 64 can't be .* choose n_head "):
        GPTConfig(n_embd=64, n_head=3)


# Hyphens in help and docs, underscores understood


@pytest.mark.parametrize("parse", [sample.parse_arguments, train_tiny.parse_arguments])
def test_every_flag_is_spelled_with_hyphens_and_understood_with_underscores(parse, capsys):
    with pytest.raises(SystemExit):
        parse(["--help"])
    flags = set(re.findall(r"--[a-z][\w-]*", capsys.readouterr().out))
    assert len(flags) > 10
    assert [flag for flag in flags if "_" in flag] == []
    values = {"--special-tokens": None, "--n-head": "8", "--vocab-size": "300"}
    for flag in sorted(flag for flag in flags if "-" in flag[2:]):
        value = values.get(flag, "32")
        spelled = [flag, "--" + flag[2:].replace("-", "_")]
        both = [parse([*([each] if value is None else [f"{each}={value}"])]) for each in spelled]
        for args in both:
            vars(args).pop("seed", None)  # drawn anew
        assert both[0] == both[1]


def test_what_is_no_flag_keeps_its_underscores():
    parser = Parser()
    parser.add_argument("--top-k")
    parser.add_argument("words", nargs="*")
    assert parser.parse_args(["--top_k", "a_b"]).top_k == "a_b"
    assert parser.parse_args(["--top_k=--a_b"]).top_k == "--a_b"
    assert parser.parse_args(["a_b", "--", "--top_k"]).words == ["a_b", "--top_k"]
    with pytest.raises(SystemExit):
        parser.parse_args(["--to_k", "5"])


def test_every_command_parses_its_flags_this_way():
    rooms = ("sample.py", "train_tiny.py", "benchmarks", "docs")
    using = [f.name for f in files(*rooms) if "Parser(" in f.read_text(encoding="utf-8")]
    assert len(using) >= 8
    for file in files(*rooms, "notebooks", "serving", "tracing"):
        assert "ArgumentParser(" not in file.read_text(encoding="utf-8"), file


def test_docs_show_flags_with_hyphens():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("checkpoints/*/README.md")]
    pages += [*ROOT.glob("notebooks/*.ipynb"), *files("benchmarks", "train_tiny.py", "sample.py")]
    assert len(pages) > 20
    for page in pages:
        assert not re.search(r"(?<!\w)--[a-z]+_[a-z]", page.read_text(encoding="utf-8")), page
