"""The trace of a run against what its tokens, text and probabilities are by other ways."""

import io
import json
from dataclasses import asdict, replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

import sample
from stages import stage3_stopping, stage4_kv_cache
from stages.stage2_sampling import Sampler
from stages.stage3_stopping import StopCheck
from support.checkpoint import load
from support.plots import png
from tests.helpers import numpy_logits
from tracing import plot
from tracing.page import trace_page
from tracing.record import Record, token_text, trace
from tracing.table import TraceTable

PROMPT = "Once upon a"
RULES = {"temperature": 0.7, "top_k": 30, "top_p": 0.8, "min_p": 0.02, "seed": 5}


@pytest.fixture(scope="module")
def loaded(small_folder):
    return load(small_folder, dtype=torch.float64)


def traced(loaded, generate=stage4_kv_cache.generate, count=20, stops=(), **rules) -> list[Record]:
    """Records of a run; the text is released after each, as sample.py does."""
    model, tokenizer = loaded
    sampler = Sampler(**(rules or RULES))
    should_stop = StopCheck(tokenizer, (), stops)
    ids = torch.tensor([tokenizer.encode(PROMPT)])
    steps = generate(model, ids, count, sampler, should_stop)
    turns = ((step.token, step.finish_reason) for step in steps)
    records = []
    for record in trace(model, tokenizer, turns, sampler, should_stop):
        records.append(record)
        shown = should_stop.close() if record.finish_reason else should_stop.release()
        assert shown == record.released
    return records


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


def test_a_trace_shows_the_probabilities_that_numpy_computes_from_the_tokens(loaded):
    model, tokenizer = loaded
    ids = tokenizer.encode(PROMPT)
    for record in traced(loaded):
        logits = numpy_logits(model, ids)[-1]
        by_model, warm = softmax(logits), softmax(logits / RULES["temperature"])
        ranked = sorted(range(len(logits)), key=lambda id: (-logits[id], id))
        kept = ranked[: RULES["top_k"]]
        shares = warm[kept] / warm[kept].sum()
        kept = kept[: int((shares.cumsum() - shares < RULES["top_p"]).sum())]
        kept = [id for id in kept if warm[id] >= RULES["min_p"] * warm[kept[0]]]
        assert record.kept == len(kept)
        assert [each.id for each in record.candidates[:5]] == ranked[:5]
        for each in record.candidates:
            assert each.rank == ranked.index(each.id) + 1
            assert each.text == token_text(tokenizer, each.id)
            assert list(each.probabilities) == ["model", "temperature", "top_k", "top_p", "min_p"]
            assert each.probabilities["model"] == pytest.approx(by_model[each.id])
            assert each.probabilities["temperature"] == pytest.approx(warm[each.id])
            last = warm[each.id] / warm[kept].sum() if each.id in kept else 0
            assert each.probabilities["min_p"] == pytest.approx(last)
        assert record.chosen in record.candidates
        assert record.chosen.id in kept
        ids.append(record.chosen.id)


def test_a_trace_shows_what_each_forward_read_and_how_the_cache_grew(loaded):
    model, tokenizer = loaded
    prompt = tokenizer.encode(PROMPT)
    for generate, cached in ((stage4_kv_cache.generate, True), (stage3_stopping.generate, False)):
        records = traced(loaded, generate, count=6)
        ids, positions = list(prompt), 0
        for step, record in enumerate(records, start=1):
            fed = ids if step == 1 or not cached else ids[-1:]
            positions += len(fed)
            assert (record.step, record.forwards, record.token_positions) == (step, step, positions)
            assert record.fed == fed
            assert record.fed_text == [token_text(tokenizer, token) for token in fed]
            lengths = (len(ids) - len(fed), len(ids)) if cached else (None, None)
            assert (record.cache_before, record.cache_after) == lengths
            assert record.shapes["ids"] == (1, len(fed))
            assert record.shapes["hidden"] == (1, len(fed), model.config.n_embd)
            assert record.shapes["logits"] == (1, model.config.vocab_size)
            assert record.milliseconds > 0
            ids.append(record.chosen.id)
        assert [record.finish_reason for record in records] == [None] * 5 + ["max_new_tokens"]


def test_a_greedy_trace_keeps_one_token_and_chooses_it(loaded):
    for record in traced(loaded, temperature=0):
        assert (record.kept, record.chosen.rank) == (1, 1)
        assert record.chosen.probabilities["argmax"] == 1


def test_text_that_may_become_a_stop_string_is_held_and_the_trace_says_what_is_missing(loaded):
    plain = traced(loaded)
    text = "".join(record.released for record in plain)
    ends = [record.released[-1:] for record in plain[:-1]]
    begun = next(end for end in ends if end.isascii() and end) + "never comes"
    records = traced(loaded, stops=[begun])
    held = [record for record in records if record.held]
    assert held
    assert held[0].held + held[0].missing == begun
    assert "".join(record.released for record in records) == text


def test_bytes_of_a_character_that_is_not_whole_are_held(loaded):
    _, tokenizer = loaded
    should_stop = StopCheck(tokenizer)
    sampler = Sampler(0)
    ids = [tokenizer.encode_single_token(bytes([byte])) for byte in "é".encode()]

    class Echo:
        def hidden(self, ids, cache=None):
            return torch.zeros(1, 1, 1)

        def head(self, x):
            return torch.zeros(1, tokenizer.n_vocab)

    model, records = Echo(), []

    def turns():
        for id in ids:
            model.head(model.hidden(torch.tensor([[0]])))
            should_stop(id)
            yield id, None

    for record in trace(model, tokenizer, turns(), sampler, should_stop):
        records.append(record)
        should_stop.release()
    assert [(record.released, record.held) for record in records] == [("", r"\xc3"), ("é", "")]


def run(capsys, folder, *options) -> tuple[int, str, str]:
    code = sample.main([PROMPT, "--model", str(folder), "--max-new-tokens", "12", *options])
    return code, *capsys.readouterr()


@pytest.mark.parametrize("stage", ["0", "1", "2", "3", "4"])
def test_tracing_changes_no_token_at_any_stage(capsys, small_folder, stage):
    options = ["--stage", stage, "--seed", "3", "--json", "--dtype", "float64"]
    plain = json.loads(run(capsys, small_folder, *options)[1])
    with_trace = json.loads(run(capsys, small_folder, *options, "--trace")[1])
    records = with_trace.pop("trace")
    for report in (plain, with_trace):
        del report["seconds"]
    assert with_trace == plain
    assert [record["chosen"]["id"] for record in records] == plain["ids"]
    assert "".join(record["released"] for record in records) == plain["text"]


def test_the_table_fits_100_columns_and_is_plain_in_a_file(loaded):
    file = io.StringIO()
    table = TraceTable(file)
    records = traced(loaded, stops=["zzz"])
    for record in records:
        table.add(record)
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in file.getvalue()
    for name in ("forward", "last logits", "choose, append", "stop check"):
        assert name in lines[3]
    assert sum(line[:4].strip().isdigit() for line in lines) == len(records)


def test_in_a_notebook_the_table_still_goes_to_its_file(monkeypatch):
    """Rich showed each row as HTML of its own there, and the file stayed empty."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    file = io.StringIO()
    TraceTable(file)
    assert "stop check" in file.getvalue()


def test_with_a_trace_stdout_is_still_the_text_alone(capsys, small_folder):
    _, plain, _ = run(capsys, small_folder, "--seed", "3")
    code, text, table = run(capsys, small_folder, "--seed", "3", "--trace")
    assert (code, text.strip("\n")) == (0, plain.strip("\n"))
    assert "cache 0 to" in table


@pytest.mark.parametrize("answers", ["\n\nq\n", "\n\n"])
def test_step_waits_for_enter_and_ends_at_q_or_at_the_end_of_stdin(
    capsys, small_folder, monkeypatch, answers
):
    monkeypatch.setattr("sys.stdin", io.StringIO(answers))
    code, out, err = run(capsys, small_folder, "--seed", "3", "--step", "--json")
    report = json.loads(out)
    assert (code, report["finish_reason"], report["new_tokens"]) == (0, "cancelled", 3)
    assert err.count("Enter") == 3


def test_a_plot_and_a_page_are_written_and_the_page_shows_the_numbers_of_the_json(
    capsys, small_folder, tmp_path
):
    plot, page = tmp_path / "trace.png", tmp_path / "trace.html"
    options = ["--seed", "3", "--json", "--plot", str(plot), "--html", str(page)]
    code, out, _ = run(capsys, small_folder, *options)
    assert code == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["trace.html", "trace.png"]
    assert data_of(page.read_text(encoding="utf-8")) == {
        "prompt": PROMPT,
        "records": json.loads(out)["trace"],
    }


def data_of(page: str) -> dict:
    """The JSON in a page, as a browser finds it."""

    class Reader(HTMLParser):
        inside, text = False, ""

        def handle_starttag(self, tag, attributes):
            self.inside = ("id", "data") in attributes
            for _, value in attributes:
                assert "//" not in (value or "")  # nothing is fetched

        def handle_data(self, data):
            self.text += data if self.inside else ""

        def handle_endtag(self, tag):
            self.inside = False

    reader = Reader()
    reader.feed(page)
    return json.loads(reader.text)


@pytest.mark.parametrize(
    "prompt",
    ["</script><script>alert(1)</script>", "<!-- <script>", "<!-- TRACE", "]]>", "</SCRIPT >",
     "\u2028\u2029", "a\ud83db", "\x00", "&lt;&quot;\\u003c", "日本 👍🏽"],
)  # fmt: skip
def test_no_text_breaks_out_of_the_page(loaded, prompt):
    """T6. After "<!-- <script>" a browser takes the next "</script>" for text and shows nothing."""
    records = traced(loaded, count=2)
    page = trace_page(prompt, records).encode("utf-8").decode("utf-8")
    data = data_of(page)
    assert data["prompt"] == prompt
    assert data["records"] == json.loads(json.dumps([asdict(record) for record in records]))
    inside = page[page.index('type="application/json">') + 24 : page.index("</script>")]
    assert json.loads(inside) == data
    assert "<" not in inside


HOSTILE = ["$x$ and $y_", "\\frac{1}{2}", "100%", "a\nb\tc", "日本語", "👍🏽", "$", "{}", "é ß"]


def test_a_plot_shows_any_text_as_it_is(loaded, monkeypatch):
    """T7: "$x$" was read as a formula, "$" alone ended the run, and what no font has was a box."""
    labels = []

    def collect(figure):
        figure.canvas.draw()  # a warning is an error here
        labels.extend(text.get_text() for text in figure.axes[1].get_xticklabels())
        return png(figure)

    monkeypatch.setattr(plot, "png", collect)
    [record] = traced(loaded, count=1)
    chosen = [replace(record.chosen, text=text) for text in HOSTILE]
    records = [replace(record, step=i, chosen=one) for i, one in enumerate(chosen, start=1)]
    assert plot.plot_trace(records).startswith(b"\x89PNG")
    assert labels == [
        "$x$ and $y_", "\\frac{1}{2}", "100%", "a\\nb\\tc", "\\u65e5\\u672c\\u8a9e",
        "\\U0001f44d\\U0001f3fd", "$", "{}", "é ß",
    ]  # fmt: skip


def test_a_plot_and_a_page_of_a_hostile_prompt_are_written_from_the_shell(small_folder, tmp_path):
    for i, prompt in enumerate(HOSTILE):
        files = [str(tmp_path / f"{i}.{kind}") for kind in ("png", "html")]
        options = ["--model", str(small_folder), "--max-new-tokens", "3", "--seed", "1"]
        assert sample.main([prompt, *options, "--plot", files[0], "--html", files[1]]) == 0
        assert data_of((tmp_path / f"{i}.html").read_text(encoding="utf-8"))["prompt"] == prompt


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["-", "--step"], "--step reads Enter from stdin"),
        (["--plot", "no/such/x.png"], "there is no folder no/such"),
        (["--plot", "."], "--plot: . is a folder, name a file in it"),
        (["--html", "no/such/x.html"], "there is no folder no/such"),
        (["--plot", "x.png", "--num-samples", "2"], "leave --num-samples out"),
    ],
)
def test_what_cannot_be_traced_is_refused_in_a_sentence(capsys, options, says):
    with pytest.raises(SystemExit) as stopped:
        sample.main(options)
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err
