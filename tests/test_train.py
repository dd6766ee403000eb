"""Training: what a run writes, that it can be interrupted, and what it learns from."""

import io
import itertools
import json
import math
import signal
import sys
from pydoc_data.topics import topics

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

import sample
import train_tiny
from support.checkpoint import load
from support.corpus import entropy, stories
from support.dataset import batch, make_tokens, read_documents, window_starts
from support.tokenizer import END_OF_TEXT, build_tokenizer, decode
from train_tiny import learning_rate, loss_of, validation_loss

SMALL = [
    "--stories=300", "--steps=12", "--block-size=32", "--vocab-size=400", "--n-layer=1",
    "--n-head=2", "--n-embd=16", "--batch-size=4", "--threads=1",
]  # fmt: skip
STEPS = 12


def train(folder, *arguments):
    try:
        return train_tiny.main([*SMALL, *arguments, "--out", str(folder)])
    except SystemExit as exit:  # of a bad flag
        return exit.code


def weights_of(folder):
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """The folder of a run that nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    assert train(folder) == 0
    return folder


@pytest.fixture
def refused(capsys):
    """Train with something wrong in it; the one line on stderr that says so."""

    def run(folder, *arguments):
        assert train(folder, *arguments) == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err.count("\n") == 1
        assert output.err.startswith("train_tiny.py: ")
        return output.err

    return run


@pytest.fixture
def interrupt_at(monkeypatch):
    """Press Ctrl-C during the forward pass of some steps, counted from 0 in this process."""

    def arrange(*steps):
        seen = iter(range(1_000_000))

        def loss(model, inputs, targets):
            # Only training steps count; the validation loss uses the same function.
            if torch.is_grad_enabled() and next(seen) in steps:
                signal.raise_signal(signal.SIGINT)
            return loss_of(model, inputs, targets)

        monkeypatch.setattr(train_tiny, "loss_of", loss)

    return arrange


# A run


def test_a_run_writes_a_folder_that_opens_and_writes_text(whole_run, capsys):
    model, tokenizer = load(whole_run)
    assert model.config.n_embd == 16
    assert model.config.vocab_size == tokenizer.n_vocab == 400
    assert sample.main(["Once", "--model", str(whole_run), "--max-new-tokens", "5"]) == 0
    assert capsys.readouterr().out.startswith("Once")


def test_a_run_leaves_what_is_of_use_and_nothing_that_only_training_needs(whole_run):
    assert {file.name for file in whole_run.iterdir()} == {
        "config.json",
        "generation_config.json",
        "loss.png",
        "merges.txt",
        "model.safetensors",
        "tokenizer_config.json",
        "training.json",
        "vocab.json",
    }


def test_the_loss_plot_is_a_png_that_needs_no_screen(whole_run):
    # B116: a plot that asks for a display ends the run after the training.
    content = (whole_run / "loss.png").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert b"IEND" in content[-12:]
    width, height = (int.from_bytes(content[i : i + 4], "big") for i in (16, 20))
    assert min(width, height) > 200


def test_training_lowers_the_loss_and_keeps_a_record_of_it(whole_run):
    state = json.loads((whole_run / "training.json").read_text(encoding="utf-8"))
    assert state["step"] == len(state["training"]) == STEPS
    assert state["settings"]["stories"] == 300
    assert math.log(400) - 0.5 < state["training"][0] < math.log(400) + 2  # knows nothing yet
    assert state["loss"] < state["training"][0] - 0.1
    assert state["validation"][-1][0] == STEPS


def test_the_end_of_a_run_tells_losses_stories_and_the_next_command(tmp_path, capsys):
    assert train(tmp_path / "run", "--steps=2") == 0
    out, err = capsys.readouterr()
    assert out.count("\n\n") >= 3  # three stories
    assert "validation loss: " in err
    assert "entropy of the corpus: " in err
    assert f"python sample.py --model {tmp_path / 'run'}\n" in err  # in one line, to be copied


def test_the_weights_depend_on_the_seed_alone(whole_run, tmp_path):
    torch.manual_seed(12345)
    assert train(tmp_path / "again") == 0
    assert train(tmp_path / "other", "--seed=1") == 0
    again, other = (weights_of(tmp_path / name) for name in ("again", "other"))
    assert all(torch.equal(again[name], weight) for name, weight in weights_of(whole_run).items())
    assert not torch.equal(again["transformer.h.0.mlp.c_fc.weight"], other["transformer.h.0.mlp.c_fc.weight"])  # fmt: skip  # noqa: E501


@pytest.mark.parametrize("steps", [[0], [5], [11], [3, 7]], ids=str)
def test_an_interrupted_and_resumed_run_ends_with_the_same_weights(
    whole_run, tmp_path, interrupt_at, capsys, steps
):
    """A resumed run that starts its batches, its learning rate or Adam's means anew learns
    something else, and nobody notices.
    """
    folder = tmp_path / "run"
    interrupt_at(*steps)
    code = train(folder)
    for _ in steps[1:]:
        assert code == 130
        code = train(folder, "--resume")
    if steps != [11]:  # a Ctrl-C in the last step comes too late to stop anything
        assert code == 130
        assert f"python train_tiny.py --resume --out {folder}\n" in capsys.readouterr().err
        load(folder)  # what was saved is a model, too
        state = json.loads((folder / "training.json").read_text(encoding="utf-8"))
        assert state["step"] == steps[-1] + 1  # the step that was under way is finished, not lost
        code = train(folder, "--resume")
    assert code == 0
    ended = weights_of(folder)
    assert all(torch.equal(ended[name], weight) for name, weight in weights_of(whole_run).items())
    state, whole = (
        json.loads((run / "training.json").read_text(encoding="utf-8"))
        for run in (folder, whole_run)
    )
    assert state == whole
    assert (folder / "loss.png").is_file()


def test_ctrl_c_after_the_last_step_leaves_a_run_that_resume_completes(
    whole_run, tmp_path, monkeypatch
):
    """The last step was saved, the plot wasn't, and --resume said that the run was complete."""

    def plot(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(train_tiny, "plot_loss", plot)
        assert train(tmp_path) == 130
    assert train(tmp_path, "--resume") == 0
    assert {file.name for file in tmp_path.iterdir()} == {file.name for file in whole_run.iterdir()}


def test_ctrl_c_works_again_after_a_run(whole_run):
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_stories_reach_a_stdout_of_any_encoding(tmp_path, monkeypatch):
    """B48: the texts of a young model are full of odd characters. Where stdout is not UTF-8, as in
    a pipe on Windows, printing one ended the run with an error after all the training.
    """
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    assert train(tmp_path, "--steps=1") == 0
    stdout.flush()
    text = stdout.buffer.getvalue().decode("utf-8")
    assert not text.isascii()


# What can't be trained


def test_resume_needs_a_run_that_is_not_complete(whole_run, tmp_path, refused):
    assert "has no run to go on with" in refused(tmp_path / "none", "--resume")
    assert not (tmp_path / "none").exists()
    line = refused(whole_run, "--resume")
    assert "is complete" in line
    assert str(whole_run) in line


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "can't be read"),
        (b"", "is empty"),
        (b" \n\n \n", "is empty"),
        (END_OF_TEXT.encode(), "is empty"),
        (b"a\xff\xfeb", "is not UTF-8"),
        (b"hello", "tokens, with --block-size 32 it needs 340"),
        (b"hello " * 60, "tokens, with --block-size 32 it needs 340"),
    ],
    ids=["missing", "empty", "blank", "only a marker", "not UTF-8", "5 characters", "short"],
)
def test_a_text_that_cannot_be_learned_is_refused_in_one_line(tmp_path, refused, content, told):
    """B112: an error from inside randint, that said nothing about the text."""
    file = tmp_path / "a text.txt"
    if content is not None:
        file.write_bytes(content)
    line = refused(tmp_path / "out", "--data", str(file))
    assert told in line
    assert not (tmp_path / "out").exists()


def test_a_folder_as_data_is_refused(tmp_path, refused):
    assert "can't be read" in refused(tmp_path / "out", "--data", str(tmp_path))


def test_an_out_that_cannot_be_written_is_refused_before_the_training(tmp_path, refused):
    file = tmp_path / "file"
    file.write_text("not a folder", encoding="utf-8")
    assert str(file) in refused(file / "out")
    assert str(file) in refused(file)
    assert file.read_text(encoding="utf-8") == "not a folder"


@pytest.mark.parametrize("name", ["[bold]x[/bold].txt", "[/a].txt", ":smile:.txt"])
def test_a_path_is_shown_as_it_is(tmp_path, refused, name):
    """rich reads square brackets as markup: it dropped them, or ended with a MarkupError."""
    assert name in refused(tmp_path / "out", "--data", str(tmp_path / name))


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("--n_head=3", "--n-embd 16 can't be split into 3 heads: choose --n-head"),
        ("--block_size=0", "--block-size is 0"),
        ("--n_layer=0", "--n-layer is 0"),
        ("--vocab_size=100", "--vocab-size is 100"),
        ("--vocab_size=70000", None),
    ],
)
def test_a_shape_that_cannot_be_is_refused_with_the_option(tmp_path, refused, argument, told):
    if told is None:  # more tokens than there is text for: the vocabulary just stays smaller
        assert train(tmp_path / "out", argument, "--steps=1") == 0
        assert 400 < load(tmp_path / "out")[1].n_vocab < 70000
    else:
        assert told in refused(tmp_path / "out", argument)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "argument",
    [
        "--steps=0",
        "--stories=0",
        "--batch_size=-1",
        "--threads=0",
        "--steps=x",
        "--lr=1",
        "--seed=-1",
        "--learning-rate=-1",
        "--learning_rate=nan",
        "--learning-rate=0",
        "--learning-rate=inf",
    ],
)
def test_a_bad_number_or_option_is_refused_with_exit_code_2_in_one_line(tmp_path, capsys, argument):
    assert train(tmp_path / "out", argument) == 2
    err = capsys.readouterr().err
    assert argument.split("=")[0].replace("_", "-") in err
    assert err.count("\n") == 1


def test_a_full_disk_is_told_in_one_line(tmp_path, refused, monkeypatch):
    def save(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(train_tiny, "save", save)
    assert "No space left on device" in refused(tmp_path / "out")


# Documents and tokens


def test_a_file_is_split_at_blank_lines_or_at_end_of_text_if_it_has_any(tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes("one\nstill one\n\ntwo é\n \t \n\n three \r\n\r\nfour\n".encode())
    assert read_documents(str(file), 0, 0) == ["one\nstill one", "two é", "three", "four"]
    file.write_bytes(b"<|endoftext|>one\n\nstill one\n<|endoftext|>\n<|endoftext|>two<|endoftext|>")
    assert read_documents(str(file), 0, 0) == ["one\n\nstill one", "two"]


def test_stories_and_pythons_help_topics_are_corpora_by_name():
    assert read_documents("stories", 7, seed=3) == stories(7, seed=3)
    documents = read_documents("python-docs", 0, 0)
    assert len(documents) == len(topics)
    assert sorted(documents) == sorted(text.strip() for text in topics.values())


def test_a_model_learns_from_pythons_help_topics(tmp_path, capsys):
    assert train(tmp_path, "--data=python-docs", "--steps=1") == 0
    err = capsys.readouterr().err
    assert f"{len(topics):,} documents" in err
    assert "entropy" not in err  # nobody knows it


def test_each_document_stands_between_end_of_text_ids(bpe_files):
    """B50: the separator was learned as its letters, and the id that ends a text never came."""
    tokenizer = build_tokenizer(bpe_files)
    documents = [*stories(3, seed=1), f"with {END_OF_TEXT} in it", "x"]
    tokens = make_tokens(documents, tokenizer)
    assert tokens.dtype == np.uint16
    assert tokens[0] == tokens[-1] == 399
    edges = np.flatnonzero(tokens == 399)
    assert len(edges) == len(documents) + 1
    texts = [tokens[a + 1 : b] for a, b in itertools.pairwise(edges)]
    assert [decode(tokenizer, text.tolist()) for text in texts] == documents


# Windows and batches


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=20),
    block_size=st.integers(1, 16),
    begins=st.booleans(),
)
def test_windows_start_at_end_of_text_or_block_by_block_inside_a_long_document(
    lengths, block_size, begins
):
    end = 9
    tokens = np.array([*([end] if begins else []), *(x for n in lengths for x in [*[1] * n, end])])
    starts = window_starts(tokens, end, block_size)
    # a whole window with its last target fits, and another that starts one token later
    assert all(start + 1 + block_size + 1 <= len(tokens) for start in starts)
    documents = {0, *np.flatnonzero(tokens == end)}
    expected = set()
    for start in range(len(tokens) - block_size - 1):
        begin = max(edge for edge in documents if edge <= start)
        if (start - begin) % block_size == 0:
            expected.add(start)
    assert sorted(starts) == sorted(expected)
    assert len(set(starts)) == len(starts)


def test_targets_are_the_inputs_shifted_by_one():
    tokens = np.arange(100, dtype=np.uint16)
    starts = np.array([0, 10, 30, 91])
    inputs, targets = batch(tokens, starts, size=64, block_size=8, seed=[0, 0])
    assert inputs.shape == targets.shape == (64, 8)
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(targets, inputs + 1)
    assert set(inputs[:, 0].tolist()) == set(starts.tolist())


def test_a_batch_depends_on_seed_and_step_alone():
    tokens, starts = np.arange(1000, dtype=np.uint16), np.arange(900)
    batches = {}
    for seed in ([0, 0], [0, 1], [1, 0], [1, 1], [0, 10]):
        np.random.seed(len(batches))
        torch.manual_seed(len(batches))
        first, again = (batch(tokens, starts, 16, 8, seed)[0] for _ in range(2))
        assert torch.equal(first, again)
        batches[tuple(seed)] = tuple(first.flatten().tolist())
    assert len(set(batches.values())) == 5


# Loss and learning rate


def test_the_learning_rate_rises_to_its_highest_and_falls_to_2_percent():
    rates = [learning_rate(step, 1000, 3e-3) for step in range(1000)]
    assert rates[0] == pytest.approx(3e-3 / 30)
    assert max(rates) == rates[29] == rates[30] == 3e-3  # the warm-up is 3 % of the steps
    assert rates[30:] == sorted(rates[30:], reverse=True)
    assert rates[515] == pytest.approx(3e-3 * 0.51)  # half way down
    assert rates[-1] == pytest.approx(3e-3 * 0.02, rel=0.01)
    assert learning_rate(1000, 1000, 3e-3) == pytest.approx(3e-3 * 0.02)


@pytest.mark.parametrize("steps", [1, 2, 3, 12, 33])
def test_the_learning_rate_of_a_short_run_is_positive_and_never_above_its_highest(steps):
    rates = [learning_rate(step, steps, 1.0) for step in range(steps)]
    assert all(0.02 <= rate <= 1 for rate in rates)
    assert max(rates) == 1


def test_the_loss_is_the_mean_surprise_in_nats(make_model):
    model = make_model()
    inputs = torch.tensor([[5, 6, 7], [8, 9, 10]])
    targets = torch.tensor([[6, 7, 1], [-100, 3, 4]])
    with torch.inference_mode():
        loss = loss_of(model, inputs, targets).item()
        log_p = model(inputs).double().log_softmax(-1)
    counted = [(b, t) for b in range(2) for t in range(3) if targets[b, t] >= 0]
    surprises = [-log_p[b, t, targets[b, t]].item() for b, t in counted]
    assert loss == pytest.approx(sum(surprises) / 5, rel=1e-5)


def test_validation_counts_the_first_document_of_a_window_with_its_end_and_nothing_after_it(
    make_model,
):
    model, end = make_model(), 399
    windows = torch.tensor(
        [
            [end, 5, 6, end, 7, 8, end],  # 3 of 6 targets count
            [end, end, 5, 6, 7, 8, 9],  # 1
            [end, 5, 6, 7, 8, 9, 10],  # all 6: no end in it
            [end, 5, 6, 7, 8, 9, end],  # all 6
        ]
        * 5  # 20 rows: more than one chunk of 16
    )
    counts = [3, 1, 6, 6] * 5
    inputs, targets = windows[:, :-1], windows[:, 1:]
    with torch.inference_mode():
        log_p = model(inputs).double().log_softmax(-1)
    surprises = [-log_p[b, t, targets[b, t]].item() for b, n in enumerate(counts) for t in range(n)]
    loss = validation_loss(model, inputs, targets, end)
    assert loss == pytest.approx(sum(surprises) / len(surprises), rel=1e-5)

    other = windows.clone()
    other[::4, 5:] = 77  # after the end of the first document
    changed = validation_loss(model, other[:, :-1], other[:, 1:], end)
    assert changed == pytest.approx(loss, rel=1e-5)


def test_validation_leaves_the_model_as_it_was(make_model):
    model = make_model().train()
    rows = torch.randint(0, 399, (3, 9), generator=torch.Generator().manual_seed(0))
    validation_loss(model, rows[:, :-1], rows[:, 1:], 399)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    loss_of(model, rows[:, :-1], rows[:, 1:]).backward()  # and it can still learn


def test_the_entropy_shown_is_per_token(capsys, tmp_path):
    """The floor stands beside the loss, so it has to have the loss's unit."""
    assert train(tmp_path, "--steps=1") == 0
    err = capsys.readouterr().err
    documents, tokens = (
        int(part.replace(",", ""))
        for part in err.split(" documents, ")[0].split()[-1:]
        + err.split(" documents, ")[1].split()[:1]
    )
    assert documents == 300
    assert f"entropy of the corpus: {entropy() * documents / tokens:.3f}" in err
