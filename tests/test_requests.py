"""`sample.py --requests`: every line is answered, with what it gets alone, as soon as it has it."""

import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import sample
from stages.stage6_serving import Engine
from support.checkpoint import load

ROOT = Path(__file__).resolve().parent.parent
PROMPT = "Once upon a time"


@pytest.fixture
def answers(capsys, small_folder, tmp_path):
    """Write the lines to a file and run the command on it; its answers by line, in their order."""

    def run(*lines, options=(), model=small_folder):
        file = tmp_path / "requests.jsonl"
        encoded = (line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
        file.write_bytes(b"\n".join(encoded))
        options = [*map(str, options), "--requests", str(file), "--model", str(model)]
        assert sample.main(options) == 0
        out, err = capsys.readouterr()
        assert err.count("\n") == 1
        found = [json.loads(line) for line in out.splitlines()]
        by_line = {answer.pop("line"): answer for answer in found}
        assert len(by_line) == len(found)
        return by_line

    return run


@pytest.fixture
def alone(capsys, small_folder):
    """The report of `sample.py --json` for one prompt."""

    def run(prompt, *options):
        options = [prompt, "--json", "--model", str(small_folder), *map(str, options)]
        assert sample.main(options) == 0
        return json.loads(capsys.readouterr().out)

    return run


def shell(*options, **streams):
    return subprocess.Popen(
        [sys.executable, "sample.py", *options],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **streams,
    )  # fmt: skip


# What is answered


def test_each_request_gets_the_text_that_the_command_writes_for_it_alone(answers, alone):
    several = [
        ({"prompt": PROMPT, "seed": 5}, ["--seed", 5]),
        ({"prompt": "", "seed": 6, "max_new_tokens": 7}, ["--seed", 6, "--max-new-tokens", 7]),
        ({"prompt": "A fox", "temperature": 0}, ["--greedy"]),
        ({"prompt": "A fox", "temperature": 2, "top_k": 9, "top_p": 0.9, "min_p": 0.01, "seed": 1},
         ["--temperature", 2, "--top-k", 9, "--top-p", 0.9, "--min-p", 0.01, "--seed", 1]),
        ({"prompt": "Nina", "seed": 3, "stop": ["e", "xyz"]}, ["--seed", 3, "--stop", "e"]),
        ({"prompt": "Nina", "seed": 3, "stop": "e"}, ["--seed", 3, "--stop", "e"]),
    ]  # fmt: skip
    made = answers(
        *[request for request, _ in several], options=["--slots", 3, "--dtype", "float64"]
    )
    for line, (request, options) in enumerate(several, start=1):
        report = alone(request["prompt"], *options, "--dtype", "float64")
        for name in ("text", "ids", "finish_reason", "matched", "prompt_tokens", "new_tokens"):
            assert made[line][name] == report[name], name
    reasons = {answer["finish_reason"] for answer in made.values()}
    assert {"max_new_tokens", "stop_string"} <= reasons


def test_the_options_of_the_command_are_the_defaults_of_the_requests(answers, alone):
    options = ["--max-new-tokens", 9, "--temperature", 1.5, "--top-k", 7, "--dtype", "float64"]
    made = answers({"prompt": PROMPT}, {"prompt": PROMPT}, options=[*options, "--seed", 40])
    for line in (1, 2):
        expected = alone(PROMPT, *options, "--seed", 39 + line)
        assert made[line]["ids"] == expected["ids"]
        assert made[line]["seed"] == expected["seed"]
    assert made[1]["ids"] != made[2]["ids"]


def test_an_answer_has_the_id_of_its_request_and_its_times(answers):
    made = answers(
        {"prompt": PROMPT, "id": {"any": ["thing"]}, "max_new_tokens": 5},
        {"prompt": PROMPT, "max_new_tokens": 0},
    )
    assert made[1]["id"] == {"any": ["thing"]}
    assert "id" not in made[2]
    assert 0 < made[1]["seconds_to_first_token"] <= made[1]["seconds"]
    assert 0 < made[1]["longest_gap"] <= made[1]["seconds"]
    assert (made[2]["seconds_to_first_token"], made[2]["seconds"]) == (None, 0)
    assert (made[2]["finish_reason"], made[2]["text"]) == ("max_new_tokens", "")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"nonsense", "this line is not JSON"),
        (b'{"prompt": "cut', "this line is not JSON"),
        (b"[" * 100_000, "this line is not JSON"),
        (b'{"prompt": "\xff"}', "this line is not JSON"),
        (["a", "list"], 'an object with a prompt, such as {"prompt"'),
        ({"seed": 1}, "an object with a prompt"),
        ({"prompt": 7}, "prompt is 7: it must be str"),
        ({"prompt": None}, "prompt is None"),
        ({"prompt": "x", "temprature": 1}, "temprature is no field.*temperature"),
        ({"prompt": "x", "temperature": "hot"}, "temperature is 'hot'.*int or float"),
        ({"prompt": "x", "temperature": -1}, "temperature is -1: it must be"),
        (b'{"prompt": "x", "temperature": NaN}', "temperature is nan"),
        ({"prompt": "x", "max_new_tokens": -1}, "max_new_tokens is -1"),
        ({"prompt": "x", "max_new_tokens": 1.5}, "max_new_tokens is 1.5: it must be int"),
        ({"prompt": "x", "max_new_tokens": True}, "max_new_tokens is True"),
        ({"prompt": "x", "top_p": 2}, "top_p is 2"),
        ({"prompt": "x", "seed": -4}, "seed is -4"),
        ({"prompt": "x", "stop": [1]}, r"stop is \[1\]"),
        ({"prompt": "x", "stop": ""}, "a stop string is empty"),
        ({"prompt": "word " * 400}, r"prompt has \d+ tokens: the model reads 1 to 64"),
    ],
)
def test_a_bad_line_is_answered_in_its_place_and_the_rest_runs(answers, line, message):
    good = {"prompt": PROMPT, "max_new_tokens": 3}
    made = answers(good, line, good)
    assert set(made[2]) == {"error"}
    assert re.search(message, made[2]["error"])
    assert made[1]["new_tokens"] == made[3]["new_tokens"] == 3


def test_a_bad_line_with_an_id_is_answered_with_it(answers):
    made = answers({"prompt": "x", "id": 12, "seed": -4})
    assert made[1]["id"] == 12


def test_empty_lines_are_skipped_and_still_counted(answers):
    made = answers(b"", {"prompt": "x", "max_new_tokens": 1}, b"  ", b"bad", b"")
    assert set(made) == {2, 4}


def test_an_empty_file_is_answered_with_nothing(answers):
    assert answers() == {}


def test_text_in_any_script_and_half_a_character_come_back(answers):
    made = answers(
        {"prompt": "日本語 😀", "id": "é", "max_new_tokens": 2},
        b'{"prompt": "\\ud800", "id": "\\ud800", "max_new_tokens": 2}',
    )
    assert made[1]["id"] == "é"
    assert made[2]["id"] == "\ud800"
    assert made[1]["new_tokens"] == made[2]["new_tokens"] == 2


def test_more_requests_than_slots_and_queue_hold_are_all_answered(answers):
    request = {"prompt": "x", "max_new_tokens": 3}
    assert set(answers(*[request] * 100, options=["--slots", 2])) == set(range(1, 101))


def test_a_request_without_prompt_needs_an_end_of_text_token(answers, edited):
    folder = edited(
        {"generation_config.json": {"eos_token_id": None}, "config.json": {"eos_token_id": None}}
    )
    made = answers({"prompt": ""}, {"prompt": "x", "max_new_tokens": 1}, model=folder)
    assert "names no end-of-text token" in made[1]["error"]
    assert made[2]["new_tokens"] == 1


def test_the_summary_counts(capsys, small_folder, tmp_path):
    file = tmp_path / "f"
    file.write_text('{"prompt": "x", "max_new_tokens": 4}\nbad\n', encoding="utf-8")
    sample.main(["--requests", str(file), "--model", str(small_folder), "--seed", "3"])
    assert re.fullmatch(
        r"\[served\] 2 requests, 1 of them refused, 4 new tokens; .* tokens/s; stage 6, seed 3\n",
        capsys.readouterr().err,
    )


# When it is answered


def test_a_client_may_wait_for_each_answer_before_it_asks_again():
    """A pipe that is read ahead would never answer the first line."""
    process = shell("--requests", "-")
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    for number in (1, 2):
        process.stdin.write(b'{"prompt": "Once", "max_new_tokens": 3}\n')
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["line"] == number
    out, err = process.communicate()
    watchdog.cancel()
    assert (process.returncode, out) == (0, b"")
    assert err.startswith(b"[served] 2 requests")


def test_a_short_text_is_answered_before_a_long_one_that_came_first(answers):
    long, short = ({"prompt": "x", "max_new_tokens": n, "temperature": 0} for n in (60, 2))
    assert list(answers(long, short)) == [2, 1]
    assert list(answers(long, short, options=["--slots", 1])) == [1, 2]


def test_ctrl_c_answers_with_the_text_so_far():
    process = shell("--requests", "-", "--slots", "1")
    process.stdin.write(b'{"prompt": "a", "max_new_tokens": 1}\n')
    process.stdin.flush()
    process.stdout.readline()  # it runs now, and waits for more
    process.send_signal(signal.SIGINT)
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    process.wait()  # although nobody has closed its stdin
    watchdog.cancel()
    out, err = process.stdout.read(), process.stderr.read()
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()
    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in err


def test_an_interrupt_cancels_what_runs_and_answers_it(capsys, monkeypatch, small_folder, tmp_path):
    step = Engine.step

    def interrupted(engine):
        if engine.steps == 4:
            raise KeyboardInterrupt
        return step(engine)

    monkeypatch.setattr(Engine, "step", interrupted)
    file = tmp_path / "f"
    file.write_text('{"prompt": "x"}\n' * 3, encoding="utf-8")
    options = ["--requests", str(file), "--model", str(small_folder), "--slots", "2"]
    assert sample.main(options) == 130
    made = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["finish_reason"] for answer in made] == ["cancelled"] * len(made)
    assert max(answer["new_tokens"] for answer in made) in (3, 4)


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--slots", "4"], "--slots is for --requests"),
        (["--requests", "f", "--slots", "0"], "--slots is 0: it must be 1 or more"),
        (["--requests", "f", "a prompt"], "--requests has its own prompts"),
        (["--requests", "f", "--num-samples", "2"], "--requests has its own"),
        (["--requests", "f", "--stage", "3"], "--requests has its own"),
        (["--requests", "f", "--context", "crop"], "--requests has its own"),
        (["--requests", "no/such/file"], "no/such/file"),
        (["--requests", "tests"], "tests"),
    ],
)
def test_what_does_not_fit_together_is_refused_in_one_line(options, message, capsys, small_folder):
    try:
        code = sample.main([*options, "--model", str(small_folder)])
    except SystemExit as exit:
        code = exit.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("sample.py: ")
    assert err.count("\n") == 1
    assert message in err


def test_the_embedded_model_serves_stories_from_the_shell():
    requests = [{"prompt": PROMPT, "seed": seed} for seed in range(6)]
    process = shell("--requests", "-", "--slots", "4")
    out, _ = process.communicate("\n".join(map(json.dumps, requests)).encode())
    made = [json.loads(line) for line in out.splitlines()]
    assert len(made) == 6
    assert {answer["finish_reason"] for answer in made} == {"eos"}
    _, tokenizer = load(ROOT / "checkpoints/tiny")
    assert all(answer["ids"][-1] == tokenizer.eot_token for answer in made)
