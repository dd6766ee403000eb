"""The shell command: what it writes, where, and what it says to bad input."""

import io
import itertools
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sample
import support.checkpoint
from model import GPT
from stages import stage4_kv_cache
from support.checkpoint import load, save
from support.tokenizer import decode

ROOT = Path(__file__).resolve().parent.parent
PROMPT = "Once upon a time"
NO_END = {"generation_config.json": {"eos_token_id": None}, "config.json": {"eos_token_id": None}}


@pytest.fixture
def write(capsys, small_folder):
    """Run the command in this process: exit code, stdout, stderr."""

    def run(*arguments, model=small_folder):
        try:
            code = sample.main([*map(str, arguments), "--model", str(model)])
        except SystemExit as exit:
            code = exit.code
        output = capsys.readouterr()
        return code, output.out, output.err

    return run


@pytest.fixture
def reports(write):
    """Run with --json in this process: one dict a sample."""

    def run(*arguments, **options):
        code, out, err = write(*arguments, "--json", **options)
        assert code == 0, err
        return [json.loads(line) for line in out.splitlines()]

    return run


@pytest.fixture
def refused(write):
    """Run with something wrong in it; returns the one line that says so."""

    def run(*arguments, **options):
        code, out, err = write(*arguments, **options)
        assert code == 2
        assert out == ""
        assert err.count("\n") == 1
        assert err.endswith("\n")
        assert err.startswith("sample.py: ")
        return err

    return run


def shell(*arguments, **options):
    """The command as a process of its own."""
    options = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen([sys.executable, "sample.py", *arguments], **options)


def by_hand(folder: Path, prompt: str, count: int) -> list[int]:
    """Greedy ids by the plainest loop there is."""
    model, tokenizer = load(folder)
    ids = tokenizer.encode_ordinary(prompt) or [tokenizer.eot_token]
    new: list[int] = []
    for _ in range(count):
        with torch.inference_mode():
            new.append(model(torch.tensor([ids + new]))[0, -1].argmax().item())
    return new


# What it writes


def test_stdout_is_the_prompt_and_the_models_text_and_a_newline(write, small_folder):
    _, tokenizer = load(small_folder)
    code, out, _ = write(PROMPT, "--greedy", "--max-new-tokens", 30)
    assert code == 0
    assert out == PROMPT + decode(tokenizer, by_hand(small_folder, PROMPT, 30)) + "\n"


def test_the_summary_is_one_line_on_stderr(write):
    _, out, err = write(PROMPT, "--seed", 7, "--max-new-tokens", 20)
    assert re.fullmatch(
        r"\[max_new_tokens\] 4 prompt tokens, 20 new; .* s, \d+ tokens/s; stage 4, seed 7\n", err
    )
    assert "max_new_tokens" not in out


@pytest.mark.parametrize("stage", range(5))
def test_streamed_text_equals_the_text_in_json(write, reports, stage):
    options = ["--stage", stage, "--max-new-tokens", 50, "--seed", 3]
    _, out, _ = write(PROMPT, *options)
    [report] = reports(PROMPT, *options)
    assert out == report["prompt"] + report["text"] + "\n"
    assert "�" in out  # the model is random: it cuts characters, and streaming has to wait for them
    assert report["new_tokens"] == len(report["ids"]) == 50
    assert report["stage"] == stage


def test_stages_0_and_1_write_what_the_others_write_greedily(reports):
    options = ["--dtype", "float64", "--context", "crop", "--max-new-tokens", 80]  # over the edge
    [plain] = reports(PROMPT, "--stage", 0, *options)
    [last_logits] = reports(PROMPT, "--stage", 1, *options)
    greedy = [reports(PROMPT, "--stage", n, "--greedy", *options)[0] for n in (2, 3, 4)]
    for report in (last_logits, *greedy):
        assert (report["text"], report["ids"]) == (plain["text"], plain["ids"])
    assert len(set(plain["ids"])) > 20  # not one word again and again, which would hide faults


@pytest.mark.parametrize(
    "options",
    [[], ["--top-k", "5"], ["--top-p", "0.9"], ["--min-p", "0.1"], ["--temperature", "1.5"]],
    ids=" ".join,
)
def test_stages_2_to_4_draw_the_same_text_from_one_seed(reports, options):
    options = [*options, "--seed", 11, "--dtype", "float64", "--max-new-tokens", 60]
    texts = {reports(PROMPT, "--stage", stage, *options)[0]["text"] for stage in (2, 3, 4)}
    assert len(texts) == 1


def test_the_same_seed_gives_the_same_text_and_another_one_another(reports):
    # B100: in some programs a seed is accepted and has no effect.
    first, again, other = (reports(PROMPT, "--seed", seed)[0]["ids"] for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_the_printed_seed_of_a_run_without_seed_repeats_it(write):
    _, out, err = write(PROMPT)
    seed = re.search(r"seed (\d+)", err)[1]
    assert write(PROMPT, "--seed", seed)[1] == out


def test_each_run_without_seed_draws_one(monkeypatch):
    monkeypatch.undo()  # of the tests' fixed one
    assert len({sample.parse_arguments([]).seed for _ in range(9)}) > 1


def test_sample_i_equals_a_run_with_seed_plus_i(reports, write):
    three = reports(PROMPT, "--seed", 5, "--num-samples", 3)
    alone = [reports(PROMPT, "--seed", seed)[0] for seed in (5, 6, 7)]
    assert [report["ids"] for report in three] == [report["ids"] for report in alone]
    assert [report["seed"] for report in three] == [5, 6, 7]
    _, out, err = write(PROMPT, "--seed", 5, "--num-samples", 3)
    assert out.split("\n---\n\n") == [f"{PROMPT}{report['text']}\n" for report in alone]
    assert err.count("\n") == 3


def test_an_earlier_run_leaves_nothing_behind(reports):
    # B86: a cache that outlives its run changes the next one.
    first = reports(PROMPT, "--seed", 1)[0]["ids"]
    reports("The cat", "--seed", 2, "--context", "crop", "--max-new-tokens", 90)
    assert reports(PROMPT, "--seed", 1)[0]["ids"] == first


def test_options_that_are_off_or_whole_numbers_change_nothing(reports):
    # B05: a temperature typed as int refuses 0.7; B07 and B19: 0 and 1 are "off".
    base = reports(PROMPT, "--seed", 1, "--temperature", "1.0")[0]["ids"]
    for off in (["--top-k", 0], ["--top-p", 1], ["--min-p", 0], ["--top-k", 10_000]):
        assert reports(PROMPT, "--seed", 1, "--temperature", 1, *off)[0]["ids"] == base
    assert reports(PROMPT, "--seed", 1, "--temperature", "0.7")[0]["ids"] != base


def test_temperature_0_is_greedy(reports):
    zero = reports(PROMPT, "--temperature", 0, "--seed", 1)[0]["ids"]
    assert zero == reports(PROMPT, "--greedy", "--seed", 2)[0]["ids"]


# Where a text begins


@pytest.mark.parametrize("arguments", [[], [""]], ids=["no prompt", "empty prompt"])
def test_without_a_prompt_the_model_begins_after_end_of_text_which_is_not_shown(
    write, reports, small_folder, arguments
):
    """B35: an empty prompt is a tensor without positions, and there is no last one to read."""
    options = ["--greedy", "--max-new-tokens", 12]
    [report] = reports(*arguments, *options)
    assert (report["prompt"], report["prompt_tokens"]) == ("", 1)
    assert report["ids"] == by_hand(small_folder, "", 12)
    _, out, _ = write(*arguments, *options)
    assert out == report["text"] + "\n"
    assert "endoftext" not in out


def test_without_a_prompt_a_folder_without_end_of_text_is_refused(refused, edited):
    folder = edited(NO_END)
    assert f"the prompt is empty, and {folder} names no end-of-text token" in refused(model=folder)


def test_end_of_text_in_a_prompt_is_plain_text_unless_asked_for(reports, small_folder):
    """B39: tiktoken refuses such a prompt with a traceback; others read it as a command."""
    _, tokenizer = load(small_folder)
    text = "a<|endoftext|>b"
    [plain] = reports(text, "--max-new-tokens", 1)
    [special] = reports(text, "--max-new-tokens", 1, "--special-tokens")
    assert plain["prompt_tokens"] == len(tokenizer.encode_ordinary(text)) > 3
    assert special["prompt_tokens"] == 3
    assert plain["prompt"] == special["prompt"] == text


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_a_prompt_file_is_read_without_its_last_newline(reports, tmp_path, ending):
    file = tmp_path / "prompt.txt"
    for text in ("“Once”\r\n\n é日", " \t a  ", "a\n\n " + ending):  # blanks are part of a prompt
        file.write_bytes((text + ending).encode())
        assert reports("--prompt-file", file)[0]["prompt"] == text


def test_a_prompt_file_that_cannot_be_read_is_refused_by_name(refused, tmp_path):
    assert f"{tmp_path / 'none'} can't be read" in refused("--prompt-file", tmp_path / "none")
    assert f"{tmp_path} can't be read" in refused("--prompt-file", tmp_path)
    latin = tmp_path / "latin.txt"
    latin.write_bytes("é".encode("latin-1"))
    assert f"{latin} is not UTF-8" in refused("--prompt-file", latin)


def test_stdin_that_is_not_utf8_is_refused(refused, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xff"), encoding="utf-8"))
    assert "stdin is not UTF-8" in refused("-")


def test_it_reads_stdin_and_runs_from_any_folder(small_folder, tmp_path):
    command = [sys.executable, ROOT / "sample.py", "-", "--model", small_folder, "--greedy"]
    done = subprocess.run(command, cwd=tmp_path, input=f"{PROMPT}\n".encode(), capture_output=True)
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode("utf-8")
    assert text.startswith(PROMPT)
    assert len(text) > len(PROMPT) + 60  # the prompt's 4 tokens leave room for 60


@pytest.mark.parametrize(
    ("prompt", "shown"),
    [("“ ” é 日".encode(), "“ ” é 日"), (b"\xff", "\ufffd")],
    ids=["not ASCII", "not UTF-8"],
)
def test_the_locale_does_not_matter(reports, small_folder, prompt, shown):
    """B48 and B44: with an ASCII locale such a prompt couldn't be encoded, or not be printed."""
    process = shell(
        prompt, "--model", small_folder, "--seed", "1", "--json", "--stop", prompt,
        env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    )  # fmt: skip
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    report = json.loads(out.decode("utf-8"))
    assert report["prompt"] == shown
    here = reports(shown, "--seed", 1, "--stop", shown)[0]
    assert (report["ids"], report["text"]) == (here["ids"], here["text"])


# Where a text ends


def test_a_stop_string_ends_the_text_across_token_boundaries_and_is_never_shown(
    write, reports, small_folder
):
    """B64 and B70: stop strings were looked for token by token, or shown before they matched."""
    _, tokenizer = load(small_folder)
    options = ["--seed", 1, "--dtype", "float64"]
    [whole] = reports(PROMPT, *options)
    pieces = [tokenizer.decode_single_token_bytes(token) for token in whole["ids"]]
    pairs = [a[-1:] + b[:1] for a, b in itertools.pairwise(pieces)]
    stops = [pair.decode() for pair in pairs if pair.isascii() and pair.decode() in whole["text"]]
    assert len(set(stops)) > 10
    for stop in dict.fromkeys(stops):
        [report] = reports(PROMPT, *options, "--stop", stop)
        assert report["text"] == whole["text"][: whole["text"].find(stop)]
        assert (report["finish_reason"], report["matched"]) == ("stop_string", stop)
    _, out, err = write(PROMPT, *options, "--stop", stop)
    assert out == f"{PROMPT}{report['text']}\n"
    assert err.startswith("[stop_string] ")


def test_of_several_stop_strings_the_first_in_the_text_ends_it(reports):
    options = ["--seed", 1, "--dtype", "float64"]
    text = reports(PROMPT, *options)[0]["text"]
    early, late = text[9:11], text[20:22]
    assert text.find(early) < text.find(late)
    for stops in (["--stop", early, "--stop", late], ["--stop", late, "--stop", early]):
        [report] = reports(PROMPT, *options, *stops, "--stop", "absent")
        assert report["text"] == text[: text.find(early)]
        assert report["matched"] == early


def test_a_stop_string_that_does_not_come_costs_no_character(reports):
    # B66: text[:text.find(stop)] cuts the last character when find returns -1.
    whole, watched = (reports(PROMPT, "--seed", 1, *s)[0] for s in ([], ["--stop", "absent"]))
    assert watched["text"] == whole["text"]
    assert watched["matched"] is None


@pytest.mark.parametrize("stage", range(5))
def test_end_of_text_ends_the_text_and_is_not_part_of_it(reports, write, edited, stage):
    """B56 and B62: it was drawn and the loop went on, or it was printed."""
    [whole] = reports(PROMPT, "--greedy", "--dtype", "float64")
    end = next(i for i, token in enumerate(whole["ids"]) if i > 2 and token not in whole["ids"][:i])
    folder = edited({"generation_config.json": {"eos_token_id": [399, whole["ids"][end]]}})
    options = ["--stage", stage, "--temperature", 0, "--dtype", "float64"]
    [report] = reports(PROMPT, *options, model=folder)
    assert (report["finish_reason"], report["matched"]) == ("eos", whole["ids"][end])
    assert report["ids"] == whole["ids"][: end + 1]
    assert report["text"] == decode(load(folder)[1], whole["ids"][:end])
    # Stages 0 to 2 fill the context first, 60 tokens after 4 of prompt.
    in_vain = 60 - len(report["ids"]) if stage < 3 else 0
    assert report["tokens_in_vain"] == in_vain
    _, out, err = write(PROMPT, *options, model=folder)
    assert out == f"{PROMPT}{report['text']}\n"
    assert (f", {in_vain} more computed in vain;" in err) == (stage < 3)


def test_max_new_tokens_0_shows_the_prompt_and_never_asks_the_model(write, reports, monkeypatch):
    """B32: one token came out, because the loop looked at the limit after its first turn."""

    def hidden(*_):
        raise AssertionError("the model was asked")

    monkeypatch.setattr(GPT, "hidden", hidden)
    for stage in range(5):
        options = ["--stage", stage, "--max-new-tokens", 0]
        assert write(PROMPT, *options)[:2] == (0, f"{PROMPT}\n")
        [report] = reports(PROMPT, *options)
        assert (report["new_tokens"], report["text"], report["ids"]) == (0, "", [])
        assert report["finish_reason"] == "max_new_tokens"


@pytest.mark.parametrize("stage", range(5))
def test_the_context_ends_the_text_when_it_is_full(reports, edited, stage):
    # B28 and B31: an index error deep in the model, at position block_size + 1.
    folder = edited(NO_END)  # a text that doesn't end by itself
    [report] = reports(PROMPT, "--stage", stage, "--max-new-tokens", 5000, model=folder)
    assert report["finish_reason"] == "context_full"
    assert report["prompt_tokens"] + report["new_tokens"] == 64
    [report] = reports("a" * 64, "--stage", stage, model=folder)
    assert (report["prompt_tokens"], report["new_tokens"]) == (64, 0)
    assert report["finish_reason"] == "context_full"


@pytest.mark.parametrize("stage", range(5))
def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(refused, stage):
    # B26: index out of range in the position table.
    for tokens in (65, 100):
        line = refused("a" * tokens, "--stage", stage)
        assert f"prompt has {tokens} tokens, the model reads 64: shorten it or pass " in line
        assert line.split(" (")[0].rstrip().endswith("pass --context crop")  # T3: no context='crop'


def test_cropping_goes_on_at_the_edge_and_all_stages_agree(reports):
    for prompt in ("a" * 63, "a" * 64, "a" * 100):
        options = ["--context", "crop", "--max-new-tokens", 8, "--dtype", "float64"]
        found = [reports(prompt, "--stage", n, "--temperature", 0, *options)[0] for n in range(5)]
        assert {tuple(report["ids"]) for report in found} == {tuple(found[0]["ids"])}
        assert len(found[0]["ids"]) == 8
        assert {report["finish_reason"] for report in found} == {"max_new_tokens"}


# Model, device and numbers


@pytest.mark.parametrize("stage", range(5))
def test_a_padded_vocabulary_never_yields_an_id_without_a_token(
    reports, tmp_path, bpe_files, make_model, stage
):
    """B41: nanoGPT rounds 50257 up to 50304, and the tokenizer fails at what it doesn't know."""
    model = make_model(vocab_size=464)
    with torch.no_grad():
        model.wte.weight[400:] = 50 * model.ln_f.bias
        assert model(torch.tensor([[1, 2, 3]]))[0].argmax(-1).min() >= 400  # they would always win
    save(tmp_path, model, bpe_files)
    [report] = reports(PROMPT, "--stage", stage, "--max-new-tokens", 30, model=tmp_path)
    assert report["new_tokens"] == 30
    assert max(report["ids"]) < 400


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_every_dtype_writes_text(reports, dtype):
    [report] = reports(PROMPT, "--dtype", dtype, "--seed", 1)
    assert report["new_tokens"] == 60
    assert len(report["text"]) > 30


def test_a_device_that_is_not_there_is_refused(refused, reports, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert "--device is cuda: PyTorch finds only cpu here" in refused(PROMPT, "--device", "cuda")
    assert "--device is tpu" in refused(PROMPT, "--device", "tpu")
    assert reports(PROMPT, "--device", "auto")[0]["new_tokens"] == 60


def test_a_missing_model_is_refused_with_the_command_that_makes_one(refused, monkeypatch, tmp_path):
    # B110: nothing is trained in a fresh clone, and a user can't know what to do.
    line = refused(PROMPT, model=tmp_path / "none")
    assert str(tmp_path / "none") in line
    assert "train_tiny.py" in line
    monkeypatch.setattr(support.checkpoint, "TINY", tmp_path / "tiny")
    assert sample.main([PROMPT]) == 2


def test_a_folder_name_that_is_no_utf8_can_be_named_in_a_refusal(refused):
    """The message held a lone surrogate, and printing it to stderr ended in a traceback."""
    assert "is not a folder" in refused(PROMPT, model="\udcff")


def test_weights_that_are_not_finite_are_refused(write, tmp_path, bpe_files, make_model):
    model = make_model()
    with torch.no_grad():
        model.ln_f.bias[0] = torch.nan
    save(tmp_path, model, bpe_files)
    code, _, err = write(PROMPT, model=tmp_path)
    assert code == 2
    assert re.fullmatch(r"sample.py: logits at step 0 are NaN or infinite.*\n", err)


# Bad input


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--temperature", "-1"], "--temperature is -1"),
        (["--temperature", "nan"], "--temperature is nan"),
        (["--temperature", "inf"], "--temperature is inf"),
        (["--temperature=-inf"], "--temperature is -inf"),
        (["--temperature", "hot"], "--temperature: invalid float value: 'hot'"),
        (["--top-k", "-1"], "--top-k is -1"),
        (["--top-k", "2.5"], "--top-k: invalid int value: '2.5'"),
        (["--top-p", "0"], "--top-p is 0"),
        (["--top-p", "-0.1"], "--top-p is -0.1"),
        (["--top-p", "1.5"], "--top-p is 1.5"),
        (["--top-p", "nan"], "--top-p is nan"),
        (["--min-p", "-0.1"], "--min-p is -0.1"),
        (["--min-p", "2"], "--min-p is 2"),
        (["--seed", "-1"], "--seed is -1"),
        (["--num-samples", "0"], "--num-samples is 0"),
        (["--max-new-tokens", "-1"], "--max-new-tokens is -1"),
        (["--stage", "9"], "--stage: invalid choice: 9"),
        (["--dtype", "int8"], "--dtype: invalid choice: 'int8'"),
        (["--context", "slide"], "--context: invalid choice: 'slide'"),
        (["--stop", ""], "stop string is empty"),
        (["--greedy", "--temperature", "0.5"], "--greedy and --temperature 0.5"),
        (["--stage", "0", "--temperature", "0.5"], "stage 0 always takes the likeliest token"),
        (["--stage", "1", "--top-k", "5"], "stage 1 always takes the likeliest token"),
        (["--prompt-file", "x.txt"], "a prompt and --prompt-file: give one of them"),
        (["--tempurature", "1"], "--tempurature"),
        (["--temp", "1"], "--temp"),
        (["a second prompt"], "a second prompt"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_refused_in_one_line_with_option_and_value(refused, arguments, told):
    """B04, B09, B19, B75, B117: accepted in silence, or a traceback from deep inside torch."""
    assert told in refused(PROMPT, *arguments)


@pytest.mark.parametrize("arguments", [["--top-k", "x"], ["--top-k", "-1"]], ids=" ".join)
def test_a_refusal_reaches_the_shell_as_one_line_and_exit_code_2(small_folder, arguments):
    process = shell(PROMPT, "--model", small_folder, *arguments)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, b"")
    assert re.fullmatch(rb"sample.py: .*top.k.*\n", err)


def test_help_explains_every_option_with_its_default(capsys, monkeypatch):
    """B117: users asked what temperature and top_k=0 mean."""
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit) as exit:
        sample.main(["--help"])
    assert exit.value.code == 0
    blocks = re.split(r"\n  (?=-)", capsys.readouterr().out)[1:]
    told = {block.split()[0]: " ".join(block.split()) for block in blocks}
    default = {
        "--prompt-file": "",
        "--special-tokens": "default: as plain text",
        "--model": "default: the embedded model",
        "--stage": "4 KV cache (default)",
        "--max-new-tokens": "default 256",
        "--temperature": "default 0.8",
        "--top-k": "0 is off, the default",
        "--top-p": "1 is off, the default",
        "--min-p": "0 is off, the default",
        "--greedy": "--temperature 0",
        "--seed": "default: a random one",
        "--num-samples": "default 1",
        "--stop": "several times",
        "--context": "stop (default)",
        "--json": "instead of text",
        "--device": "cpu (default)",
        "--dtype": "default float32",
    }
    assert set(told) >= set(default)
    assert all(words in told[option] for option, words in default.items())
    new = set(told) - set(default) - {"-h,"}
    assert all(len(told[option].split()) > 3 for option in new), "an option without an explanation"


# Ctrl-C and closed pipes


def test_ctrl_c_keeps_the_text_so_far(write, reports, monkeypatch):
    """B78: the text was lost, or a traceback came after it."""
    real = stage4_kv_cache.generate

    def interrupted(*arguments):
        steps = real(*arguments)
        for _ in range(9):
            yield next(steps)
        raise KeyboardInterrupt

    [whole] = reports(PROMPT, "--seed", 1, "--max-new-tokens", 9)
    monkeypatch.setattr(stage4_kv_cache, "generate", interrupted)
    code, out, err = write(PROMPT, "--seed", 1)
    assert code == 130
    assert out == f"{PROMPT}{whole['text']}\n"
    assert err.startswith("[cancelled] 4 prompt tokens, 9 new;")
    code, out, _ = write(PROMPT, "--seed", 1, "--json", "--num-samples", 3)
    assert code == 130
    assert json.loads(out)["finish_reason"] == "cancelled"
    assert json.loads(out)["ids"] == whole["ids"]


def test_ctrl_c_at_the_shell_ends_a_running_text_without_a_traceback(reports, edited):
    folder = edited(NO_END)  # a text that doesn't end by itself
    options = ["--model", folder, "--seed", "1", "--context", "crop"]
    with shell(PROMPT, *options, "--max-new-tokens", "1000000") as process:
        first = process.stdout.read(60)
        assert len(first) == 60  # so text arrives while more is being made
        process.send_signal(signal.SIGINT)
        rest, err = process.stdout.read(), process.stderr.read()
    assert process.returncode == 130
    summary = re.fullmatch(rb"\[cancelled\] 4 prompt tokens, (\d+) new; .*\n", err)
    assert summary
    count = int(summary[1])
    # The signal may come while a token is on its way, so one more or less may be shown.
    [after] = reports(PROMPT, *options, "--max-new-tokens", count + 1, model=folder)
    [before] = reports(PROMPT, *options, "--max-new-tokens", max(0, count - 2), model=folder)
    shown = (first + rest).decode("utf-8").removesuffix("\n").rstrip("\ufffd")
    assert (PROMPT + after["text"]).startswith(shown)
    assert len(shown) >= len(PROMPT + before["text"].rstrip("\ufffd"))


@pytest.mark.parametrize("module", ["torch", "numpy", "numpy.linalg", "stages.stage2_sampling"])
def test_an_early_ctrl_c_ends_it_at_once(small_folder, module):
    """While torch imports numpy, a KeyboardInterrupt was swallowed and the text written after all,
    or the process ended with a RecursionError, or by std::terminate.
    """
    press_at_import = (
        "import os, runpy, signal, sys\n"
        "def press(event, arguments):\n"
        "    if event == 'import' and arguments[0] == module and not pressed:\n"
        "        pressed.append(True)\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "pressed, module = [], sys.argv.pop()\n"
        "sys.addaudithook(press)\n"
        "runpy.run_path('sample.py', run_name='__main__')\n"
    )
    command = [sys.executable, "-c", press_at_import, "--model", small_folder, module]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_a_closed_pipe_is_quiet(edited):
    """`python sample.py … | head -1` ended with a BrokenPipeError, or in its shadow at exit."""
    options = ["--model", edited(NO_END), "--context", "crop", "--max-new-tokens", "1000000"]
    with shell(PROMPT, *options) as process:
        assert process.stdout.read(20)
        process.stdout.close()
        err = process.stderr.read()
        process.wait(timeout=60)
    assert err == b""
    assert process.returncode == 141


def test_starting_imports_little_but_torch(small_folder):
    """PyTorch's compiler alone took 1.6 s to import, and building a model loaded it unnoticed."""
    script = (
        "import sys, sample; sample.main(['--model', sys.argv[1], '--max-new-tokens', '1']);"
        "slow = {'torch._dynamo', 'sympy', 'matplotlib', 'rich'};"
        "print(slow & set(sys.modules), file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(small_folder)],
        cwd=ROOT, capture_output=True, encoding="utf-8", check=True,
    )  # fmt: skip
    assert result.stderr.endswith("set()\n")
