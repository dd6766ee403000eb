"""The bug museum: wrong answers that were seen in public code, or that learners write.

Each docstring says what is wrong, and where it was seen. MUSEUM names, for each wrong answer to an
exercise, words that the checker's evidence must contain: so a learner is told the symptom.
"""

import codecs
import math
from collections.abc import Callable
from functools import lru_cache
from random import Random

import torch
import torch.nn.functional as F

from notebooks.checks.models import random_model
from notebooks.checks.solutions import (
    LearnersCache,
    cancel_request,
    next_step,
    transformers_settings,
)
from stages.stage2_sampling import greedy, pick
from stages.stage4_kv_cache import KVCache
from stages.stage6_serving import Engine, Request

# Lesson 01. What is the loop?


def prompt_changed(model, ids, max_new_tokens, eos):
    """Appends to the caller's list, as picoGPT does: a second run goes on where the first ended."""
    for _ in range(max_new_tokens):
        token = int(model(ids).argmax())
        if token == eos:
            break
        ids.append(token)
    return ids


def end_token_ignored(model, ids, max_new_tokens, eos):
    """Never looks at what was chosen: nanoGPT's loop runs on into the next text."""
    ids = list(ids)
    for _ in range(max_new_tokens):
        ids.append(int(model(ids).argmax()))
    return ids


def end_token_kept(model, ids, max_new_tokens, eos):
    """Appends before it checks, so the text ends in a token that means nothing to a reader."""
    ids = list(ids)
    for _ in range(max_new_tokens):
        ids.append(int(model(ids).argmax()))
        if ids[-1] == eos:
            break
    return ids


def any_end_token_stops(model, ids, max_new_tokens, eos):
    """Looks for the end token in the whole text; a prompt may begin with one."""
    text = list(ids)
    for _ in range(max_new_tokens):
        if eos in text:
            break
        text.append(int(model(text).argmax()))
    return text[:-1] if len(text) > len(ids) and text[-1] == eos else text


def last_token_alone(model, ids, max_new_tokens, eos):
    """Feeds the newest token without those before it: right for a table, wrong for a model."""
    ids = list(ids)
    for _ in range(max_new_tokens):
        token = int(model(ids[-1:]).argmax())
        if token == eos:
            break
        ids.append(token)
    return ids


def logits_in_advance(model, ids, max_new_tokens, eos):
    """Asks for the next logits at the end of each turn: those of the last turn are thrown away."""
    ids = list(ids)
    logits = model(ids)
    for _ in range(max_new_tokens):
        token = int(logits.argmax())
        if token == eos:
            break
        ids.append(token)
        logits = model(ids)
    return ids


def prompt_left_out(model, ids, max_new_tokens, eos):
    """Returns what is new, and the caller asked for the text."""
    text = list(ids)
    for _ in range(max_new_tokens):
        token = int(model(text).argmax())
        if token == eos:
            break
        text.append(token)
    return text[len(ids) :]


def prompt_costs_forwards(P, N, eos_step):
    """Counts a forward for each token of the prompt; one reads them all."""
    return P + (N if eos_step is None else min(N, eos_step))


def end_token_is_free(P, N, eos_step):
    """Doesn't count the forward that the end token was chosen from."""
    return N if eos_step is None else min(N, eos_step - 1)


def end_not_reached(P, N, eos_step):
    """Counts up to the end token even when the limit comes first."""
    return N if eos_step is None or N == 0 else eos_step


def first_token_is_free(P, N, eos_step):
    """Takes the first new token to be there before the loop starts."""
    return max(0, N - 1)


# Lesson 02. Why only the last row?


def second_to_last_row(model, ids, max_new_tokens):
    """Reads row -2: it predicts the last token, which is there already."""
    for _ in range(max_new_tokens):
        logits = model(ids)[:, -2:][:, 0]  # of a single row, that one
        ids = torch.cat((ids, logits.argmax(dim=-1, keepdim=True)), dim=1)
    return ids


def first_row(model, ids, max_new_tokens):
    """Reads row 0: it has seen one token, so every turn gives the same answer."""
    for _ in range(max_new_tokens):
        logits = model(ids)[:, 0]
        ids = torch.cat((ids, logits.argmax(dim=-1, keepdim=True)), dim=1)
    return ids


def first_text_for_all(model, ids, max_new_tokens):
    """Chooses for the first text of a batch and copies its token to all the others."""
    for _ in range(max_new_tokens):
        token = model(ids)[0, -1].argmax()
        ids = torch.cat((ids, token.expand(len(ids), 1)), dim=1)
    return ids


def surest_row(model, ids, max_new_tokens):
    """Takes the largest logit of all rows: some other position's favourite."""
    for _ in range(max_new_tokens):
        logits = model(ids).amax(dim=1)
        ids = torch.cat((ids, logits.argmax(dim=-1, keepdim=True)), dim=1)
    return ids


BROKEN_LOOPS = (second_to_last_row, first_row, first_text_for_all, surest_row)


def row_of_the_token_itself(model, ids):
    """Asks row t about token t, which that row has read already."""
    probs = model(ids)[:, 1:].softmax(dim=-1)
    return probs.gather(-1, ids[:, 1:, None])[:, :, 0]


def softmax_along_the_text(model, ids):
    """Softmax over the positions: the numbers look like probabilities and mean nothing."""
    return model(ids).softmax(dim=1)[:, :-1].gather(-1, ids[:, 1:, None])[:, :, 0]


def a_forward_for_each_prefix(model, ids):
    """Right, at the price of one forward for each token."""
    columns = [
        model(ids[:, :t])[:, -1].softmax(dim=-1).gather(-1, ids[:, t, None])
        for t in range(1, ids.shape[1])
    ]
    return torch.cat([ids.new_zeros(len(ids), 0), *columns], dim=1)


def logarithms(model, ids):
    """What training uses, not what was asked for."""
    return model(ids)[:, :-1].log_softmax(dim=-1).gather(-1, ids[:, 1:, None])[:, :, 0]


def length_is_right(model, loop):
    """A test that counts tokens passes every loop that makes some."""
    return loop(model, torch.arange(6)[None], 4).shape == (1, 10)


def one_token_prompt(model, loop):
    """A prompt of one token has one row, so row -2 and row 0 are the last."""
    ids = torch.arange(3)[:, None]
    return loop(model, ids, 1)[:, -1].equal(model(ids)[:, -1].argmax(dim=-1))


def one_text_alone(model, loop):
    """With a batch of one, a token copied to all rows is right."""
    ids = loop(model, torch.arange(6)[None], 8)
    return all(ids[:, t].equal(model(ids[:, :t])[:, -1].argmax(dim=-1)) for t in range(6, 14))


def every_row_the_same(model, loop):
    """Wants the new text to be the favourite of every row, the prompt's own tokens included."""
    ids = loop(model, torch.arange(6)[None], 4)
    return ids[:, 1:].equal(model(ids)[:, :-1].argmax(dim=-1))


def sliced_after_the_head(model, ids):
    """Right, and the head has scored every position in vain: stage 0."""
    return model(ids)[:, -1]


def head_of_first_position(model, ids):
    """Position 0 has read one token."""
    return model.head(model.hidden(ids)[:, 0])


def last_of_first_text(model, ids):
    """Forgets that there is a batch: every text gets the first one's logits."""
    return model.head(model.hidden(ids)[:1, -1]).expand(len(ids), -1)


def position_kept(model, ids):
    """[:, -1:] keeps a dimension of length 1, and the loop's [:, -1] then hides it."""
    return model.head(model.hidden(ids)[:, -1:])


# Lesson 03. From logits to a token: greedy and temperature


def _all_on_argmax(logits):
    return torch.eye(logits.shape[-1], dtype=logits.dtype)[logits.argmax(dim=-1)]


def temperature_multiplies(logits, T):
    """Multiplies where it should divide: a low temperature makes the text wilder."""
    if T == 0:
        return _all_on_argmax(logits)
    return (logits * T).softmax(dim=-1)


def probabilities_divided(logits, T):
    """Divides the probabilities and makes them sum to 1 again: nothing has changed."""
    if T == 0:
        return _all_on_argmax(logits)
    divided = logits.softmax(dim=-1) / T
    return divided / divided.sum(dim=-1, keepdim=True)


def zero_divides(logits, T):
    """No case for temperature 0: nanoGPT's and OpenAI's loops divide by it."""
    return ((logits - logits.amax(dim=-1, keepdim=True)) / T).softmax(dim=-1)


def maximum_without_keepdim(logits, T):
    """Right for one row, an error for most others, silently wrong when B equals V."""
    if T == 0:
        return _all_on_argmax(logits)
    return ((logits - logits.amax(dim=-1)) / T).softmax(dim=-1)


def logits_changed(logits, T):
    """Divides in place: the caller's logits are not the model's any more."""
    if T == 0:
        return _all_on_argmax(logits)
    logits -= logits.amax(dim=-1, keepdim=True)
    return logits.div_(T).softmax(dim=-1)


def overflows(logits, T):
    """Divides logits as they are: by a very small temperature they become infinite."""
    if T == 0:
        return _all_on_argmax(logits)
    return (logits / T).softmax(dim=-1)


def all_of_a_tie(logits, T):
    """At temperature 0 every token as likely as the first keeps a share."""
    top = logits.amax(dim=-1, keepdim=True)
    if T == 0:
        return (logits == top) / (logits == top).sum(dim=-1, keepdim=True)
    return ((logits - top) / T).softmax(dim=-1)


def ratio_upside_down(p1, p2, T):
    """To the power T, where it is 1 / T."""
    return (p1 / p2) ** T


def ratio_divided(p1, p2, T):
    """Divides the ratio itself; temperature divides its logarithm."""
    return p1 / p2 / T


def ratio_unmoved(p1, p2, T):
    """Takes temperature to be a factor that all tokens share, so that it cancels."""
    return p1 / p2


def probabilities_as_logits(p1, p2, T):
    """Divides probabilities by the temperature and takes their softmax."""
    return math.exp((p1 - p2) / T)


# Lesson 04. Top-k, top-p, and does order matter?


def ties_stay(logits, k):
    """Drops what is below the k-th logit, so all its equals stay: nanoGPT and transformers."""
    kth = logits.topk(min(k, logits.shape[-1])).values[:, [-1]]
    return logits.masked_fill(logits < kth, -torch.inf)


def first_ids(logits, k):
    """Takes ranks for ids: a mask for the sorted row is laid on the unsorted one."""
    dropped = torch.arange(logits.shape[-1]) >= k
    return logits.masked_fill(dropped, -torch.inf)


def mask_too_small(logits, k):
    """Masks with -1e-10 where -1e10 was meant: minGPT #10. Negative logits then lose to it."""
    order = logits.argsort(dim=-1, descending=True, stable=True)
    return logits.scatter(-1, order[:, k:], -1e-10)


def wrong_end(logits, k):
    """Takes the largest of the kept logits as the bar, not the smallest: fluxions-ai/vui PR #32."""
    order = logits.argsort(dim=-1, descending=True, stable=True)
    return logits.scatter(-1, order[:, 1:], -torch.inf)


def k_above_vocabulary(logits, k):
    """torch.topk raises when there are fewer than k tokens: keras-hub #236."""
    order = logits.topk(k).indices
    return torch.full_like(logits, -torch.inf).scatter(-1, order, logits.gather(-1, order))


def logits_masked_in_place(logits, k):
    """Writes into what it was given, as nanoGPT's loop does: the model's own row is gone."""
    order = logits.argsort(dim=-1, descending=True, stable=True)
    return logits.scatter_(-1, order[:, k:], -torch.inf)


def _top_p(logits, keep):
    ranked, order = logits.sort(dim=-1, descending=True, stable=True)
    return logits.scatter(-1, order, ranked.masked_fill(~keep(ranked.softmax(-1)), -torch.inf))


def crossing_token_dropped(logits, p):
    """Keeps while the sum is at most p, the likeliest at least: OpenAI's GPT-2 sample.py."""

    def keep(probs):
        kept = probs.cumsum(dim=-1) <= p
        kept[:, 0] = True
        return kept

    return _top_p(logits, keep)


def nothing_left(logits, p):
    """No guard for a likeliest token that alone is above p: all minus infinity, then NaN."""
    return _top_p(logits, lambda probs: (probs.cumsum(dim=-1) - probs < p) & (probs < p))


def mask_of_ranks(logits, p):
    """Never goes back from the sorted row to the ids."""
    probs = logits.sort(dim=-1, descending=True, stable=True).values.softmax(dim=-1)
    return logits.masked_fill(probs.cumsum(dim=-1) - probs >= p, -torch.inf)


def sum_of_logarithms(logits, p):
    """Sums log-probabilities, which are negative: p is never reached."""
    return _top_p(logits, lambda probs: probs.log().cumsum(dim=-1) - probs.log() < p)


def sum_by_id(logits, p):
    """Doesn't sort: keeps the first ids, not the likeliest."""
    probs = logits.softmax(dim=-1)
    return logits.masked_fill(probs.cumsum(dim=-1) - probs >= p, -torch.inf)


def order_of_row_0(logits, p):
    """Sorts the first row and lays its order on all the others."""
    order = logits[:1].argsort(descending=True, stable=True).expand_as(logits)
    probs = logits.softmax(dim=-1).gather(-1, order)
    dropped = torch.zeros_like(logits, dtype=torch.bool)
    return logits.masked_fill(
        dropped.scatter(-1, order, probs.cumsum(dim=-1) - probs >= p), -torch.inf
    )


def one_more_than_needed(logits, p):
    """Shifts the sum by a place twice, so the token after the crossing one stays, too."""

    def keep(probs):
        mass_before = probs.cumsum(dim=-1) - probs
        return mass_before.roll(1, dims=-1).index_fill(-1, torch.tensor(0), 0.0) < p

    return _top_p(logits, keep)


def at_temperature_1():
    """Temperature 1 changes nothing, in any order."""
    return [([0.6, 0.3, 0.1], 1.0, 0.7), ([0.6, 0.3, 0.1], 2.0, 0.55)]


def all_alike():
    """Equal probabilities are equal at any temperature."""
    return [([0.25, 0.25, 0.25, 0.25], 0.5, 0.6), ([0.6, 0.3, 0.1], 2.0, 0.55)]


def too_sure():
    """The first token reaches p in both orders."""
    return [([0.6, 0.3, 0.1], 0.5, 0.5), ([0.9, 0.08, 0.02], 2.0, 0.5)]


def cold_twice():
    """Two examples of the same side."""
    return [([0.6, 0.3, 0.1], 0.5, 0.7), ([0.6, 0.3, 0.1], 0.25, 0.8)]


def no_distribution():
    """Weights are fine for a computer, but the question is about probabilities."""
    return [([6.0, 3.0, 1.0], 0.5, 0.7), ([6.0, 3.0, 1.0], 2.0, 0.55)]


# Lesson 05. Can randomness be replayed?


def edge_to_the_left(probs, u):
    """Takes the first share that ends at u or beyond: at u = 0 that may be an empty one."""
    ends = probs.double().cumsum(dim=0)
    return int((ends / ends[-1] >= u).nonzero()[0])


def sum_taken_for_1(probs, u):
    """Ten times 0.1 is a little less than 1, and u can lie in the gap."""
    return int(torch.searchsorted(probs.cumsum(dim=0), u, right=True))


def gap_given_to_the_last(probs, u):
    """Mends the gap with the last id of the vocabulary, which a filter may have dropped."""
    token = torch.searchsorted(probs.cumsum(dim=0), u, right=True)
    return int(token.clamp(max=len(probs) - 1))


def rank_for_id(probs, u):
    """Sorts, draws, and forgets to translate the rank back into an id."""
    ranked = probs.sort(descending=True, stable=True).values
    return int((ranked.cumsum(dim=0) > u).nonzero()[0])


def likeliest_first(probs, u):
    """The right chances, on another ladder: the same u gives another token than the project's."""
    ranked, order = probs.sort(descending=True, stable=True)
    return int(order[(ranked.cumsum(dim=0) > u).nonzero()[0]])


def likeliest_only(probs, u):
    """Has no use for u."""
    return int(probs.argmax())


def own_draw(probs, u):
    """Draws with numbers of its own, so that nothing can be replayed."""
    return int(torch.multinomial(probs, 1))


def seeded_at_every_token(seed):
    """Makes its generator anew at every token: each draw gets the same number, and rolls repeat."""
    return lambda logits: pick(logits, Random(seed).random())


def never_seeded(seed):
    """Takes a seed and does nothing with it: no run can be repeated."""
    numbers = Random()
    return lambda logits: pick(logits, numbers.random())


def always_seed_0(seed):
    """The seed is fixed inside, so whatever one asks for is the same text."""
    numbers = Random(0)
    return lambda logits: pick(logits, numbers.random())


def shared_generator(seed):
    """One generator for all, as torch.manual_seed gives: whoever draws shifts the others."""
    torch.manual_seed(seed)
    return lambda logits: torch.multinomial(logits.softmax(dim=-1), 1)


BROKEN_SAMPLERS = (seeded_at_every_token, never_seeded, always_seed_0, shared_generator)


def _tokens(choose, steps=5):
    return [choose(torch.zeros(1, 1000)).item() for _ in range(steps)]


def same_tokens_twice(make_choose):
    """What most tests of a seed look at; a generator that always gives one number passes."""
    return _tokens(make_choose(1)) == _tokens(make_choose(1))


def varied_tokens(make_choose):
    """Random it is, but can it be repeated?"""
    return len(set(_tokens(make_choose(1)))) > 1


def seeds_not_compared(make_choose):
    """Never asks whether another seed gives another text."""
    tokens = _tokens(make_choose(1))
    return tokens == _tokens(make_choose(1)) and len(set(tokens)) > 1


def one_run_after_the_other(make_choose):
    """Nobody else draws during a run, so a shared generator looks private."""
    one, again, other = (_tokens(make_choose(seed)) for seed in (1, 1, 2))
    return one == again and one != other and len(set(one)) > 1


def sure_model(make_choose):
    """Tests with logits that leave no choice: every generator gives the same token."""
    rules = make_choose(1), make_choose(1), make_choose(2)
    logits = 100 * torch.arange(1000.0)[None]
    one, again, other = ([choose(logits).item() for _ in range(5)] for choose in rules)
    return one == again and one != other


def one_generator_for_all(seeds):
    """The rows draw in turn from one generator, so each row's numbers depend on the others."""
    numbers = Random(seeds[0])
    return lambda logits: torch.cat([pick(row, numbers.random()) for row in logits.split(1)])


def seeded_by_row(seeds):
    """The generator belongs to the place in the batch, not to the request that stands there."""
    numbers = [Random(row) for row in range(len(seeds))]
    return lambda logits: torch.cat(
        [pick(row, own.random()) for row, own in zip(logits.split(1), numbers, strict=True)]
    )


def seeded_at_every_turn(seeds):
    """Each request's own seed, and at every turn its first number again."""
    return lambda logits: torch.cat(
        [pick(row, Random(seed).random()) for row, seed in zip(logits.split(1), seeds, strict=True)]
    )


def first_token_for_all(seeds):
    """Draws for row 0 and copies the token to all rows: karpathy/nanochat PR #38."""
    numbers = Random(seeds[0])
    return lambda logits: pick(logits[:1], numbers.random()).expand(len(logits), 1)


def one_number_for_all(seeds):
    """One number a turn for the whole batch: equal rows get equal tokens."""
    numbers = Random(seeds[0])

    def choose(logits):
        u = numbers.random()
        return torch.cat([pick(row, u) for row in logits.split(1)])

    return choose


def flat_tokens(seeds):
    """Returns (B,), which torch.cat can't append to ids (B, T)."""
    numbers = [Random(seed) for seed in seeds]
    return lambda logits: torch.cat(
        [pick(row, own.random())[0] for row, own in zip(logits.split(1), numbers, strict=True)]
    )


# Lesson 06. When does it stop, and what may be shown?


def limit_before_eos(new_tokens, prompt_tokens, eos_ids, max_new_tokens, block_size):
    """The last token allowed is end-of-text, and the caller is told the text was cut off."""
    if len(new_tokens) >= max_new_tokens:
        return "max_new_tokens"
    if new_tokens[-1] in eos_ids:
        return "eos"
    return "context_full" if prompt_tokens + len(new_tokens) >= block_size else None


def prompt_counted_as_new(new_tokens, prompt_tokens, eos_ids, max_new_tokens, block_size):
    """A long prompt shortens the answer: huggingface/transformers #13983, #17414."""
    if new_tokens[-1] in eos_ids:
        return "eos"
    if prompt_tokens + len(new_tokens) >= max_new_tokens:
        return "max_new_tokens"
    return "context_full" if prompt_tokens + len(new_tokens) >= block_size else None


def one_token_too_many(new_tokens, prompt_tokens, eos_ids, max_new_tokens, block_size):
    """> for >=: the loop makes one token more than was asked for, or than there is room for."""
    if new_tokens[-1] in eos_ids:
        return "eos"
    if len(new_tokens) > max_new_tokens:
        return "max_new_tokens"
    return "context_full" if prompt_tokens + len(new_tokens) > block_size else None


def one_end_token_only(new_tokens, prompt_tokens, eos_ids, max_new_tokens, block_size):
    """Compares with a single id although a model names several: the text runs past the others."""
    if new_tokens[-1] == min(eos_ids):
        return "eos"
    if len(new_tokens) >= max_new_tokens:
        return "max_new_tokens"
    return "context_full" if prompt_tokens + len(new_tokens) >= block_size else None


def stop_string_leaks(pieces, stop):
    """Each piece alone is searched, so a stop string is shown piece by piece: vllm #3574."""
    for piece in pieces:
        if stop in piece:
            yield piece[: piece.index(stop)]
            return
        yield piece
    yield ""


def partial_progress_forgotten(pieces, stop):
    """A mismatch sets the match back to nothing: stop 12 is missed in the stream 1 1 2."""
    matched = 0
    for piece in pieces:
        shown = ""
        for character in piece:
            if character == stop[matched]:
                matched += 1
                if matched == len(stop):
                    yield shown
                    return
            else:
                shown += stop[:matched] + character
                matched = 0
        yield shown
    yield stop[:matched]


def held_too_long(pieces, stop):
    """Always holds the last len(stop) - 1 characters, decided or not: the stream lags."""
    text, sent = "", 0
    for piece in pieces:
        text += piece
        if stop in text:
            yield text[sent : text.index(stop)]
            return
        safe = max(sent, len(text) - len(stop) + 1)
        yield text[sent:safe]
        sent = safe
    yield text[sent:]


def held_text_lost(pieces, stop):
    """No stop string came, and what was held back for it is never shown: the end is missing."""
    held = ""
    for piece in pieces:
        held += piece
        if stop in held:
            yield held[: held.index(stop)]
            return
        undecided = max(n for n in range(len(stop)) if held.endswith(stop[:n]))
        yield held[: len(held) - undecided]
        held = held[len(held) - undecided :]
    yield ""


def each_token_alone(pieces):
    """A character cut in two comes out as U+FFFD twice: textgen #1603, ChatGLM-6B #478."""
    for piece in pieces:
        yield piece.decode("utf-8", errors="replace")
    yield ""


def halves_ignored(pieces):
    """errors="ignore" hides the U+FFFD and loses the character with it."""
    for piece in pieces:
        yield piece.decode("utf-8", errors="ignore")
    yield ""


def waits_for_clean_text(pieces):
    """Holds everything back while any U+FFFD is in it: after one bad byte nothing is shown."""
    held = b""
    for piece in pieces:
        held += piece
        text = held.decode("utf-8", errors="replace")
        if "\ufffd" in text:
            yield ""
        else:
            yield text
            held = b""
    yield held.decode("utf-8", errors="replace")


def cut_character_raises(pieces):
    """The run ends inside a character, and the request fails: Camelid PR #288."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for piece in pieces:
        yield decoder.decode(piece)
    yield decoder.decode(b"", final=True)


# Lesson 07. What does the plain loop cost?


def last_token_fed_too(P, N):
    """Counts a forward for the last token, whose logits nobody needs."""
    return N * P + N * (N + 1) // 2, P + N


def prompt_read_once(P, N):
    """The plain loop reads the prompt again at every step, not once."""
    return P + N * (N - 1) // 2, P + N - 1 if N else 0


def no_tokens_cost_a_prefill(P, N):
    """N = 0 runs no forward, but the formula for the ideal still charges P - 1."""
    return N * P + N * (N - 1) // 2, P + N - 1


def one_forward_too_many(model, ids, max_new_tokens):
    """The forward stands at the end of the turn: the last one's logits are thrown away."""
    last = model(ids)[:, -1]
    for _ in range(max_new_tokens):
        token = last.argmax(dim=-1, keepdim=True)
        ids = torch.cat((ids, token), dim=1)
        last = model(ids)[:, -1]
    return ids


def one_token_too_few(model, ids, max_new_tokens):
    """The extra forward is cut away together with the last token."""
    last = model.head(model.hidden(ids)[:, -1])
    for _ in range(max_new_tokens - 1):
        ids = torch.cat((ids, last.argmax(dim=-1, keepdim=True)), dim=1)
        last = model.head(model.hidden(ids)[:, -1])
    return ids


def forward_for_nothing(model, ids, max_new_tokens):
    """max_new_tokens=0 still runs a forward, and so a budget of nothing costs a whole prompt."""
    last = model.head(model.hidden(ids)[:, -1])
    for count in range(max_new_tokens):
        ids = torch.cat((ids, last.argmax(dim=-1, keepdim=True)), dim=1)
        if count < max_new_tokens - 1:
            last = model.head(model.hidden(ids)[:, -1])
    return ids


def head_on_every_row(model, ids, max_new_tokens):
    """Right tokens, right forwards, and all rows of logits but the last are computed in vain."""
    for _ in range(max_new_tokens):
        ids = torch.cat((ids, model(ids)[:, -1].argmax(dim=-1, keepdim=True)), dim=1)
    return ids


def positions_only(P, N, fixed, per_position):
    """Compares token-positions and forgets that a forward costs something whatever it reads."""
    return (N * P + N * (N - 1) / 2) / (P + N - 1)


def fixed_cost_once(P, N, fixed, per_position):
    """Charges the fixed cost once a run; it is paid at every forward."""
    plain = fixed + (N * P + N * (N - 1) / 2) * per_position
    return plain / (fixed + (P + N - 1) * per_position)


def upside_down(P, N, fixed, per_position):
    """Ideal over plain: a loop that does more work comes out as the faster one."""
    plain = N * fixed + (N * P + N * (N - 1) / 2) * per_position
    return (N * fixed + (P + N - 1) * per_position) / plain


# Lesson 08. What does a KV cache keep?


class FirstTokenNeverStored(LearnersCache):
    """The first forward uses its keys and doesn't keep them: every later token has lost them."""

    def append(self, layer, k, v):
        return (k, v) if self.length == 0 else super().append(layer, k, v)


class PositionsRestart(LearnersCache):
    """Each forward counts its positions from zero: mlx-lm PR #93, nanoVLM PR #71."""

    def positions(self, T):
        return torch.arange(T)


def remembers_last_prompt(model, capacity):
    """Made once, handed out again, never reset: the second prompt sees the first (AutoAWQ #170)."""
    return the_one_cache(model)


@lru_cache(maxsize=1)
def the_one_cache(model):
    return LearnersCache(model, model.config.block_size)


class MaskTopLeft(LearnersCache):
    """As is_causal=True: new query i sees keys 0 to i (pytorch #144858); a single one sees all."""

    def mask(self, T):
        return None if T == 1 else torch.ones(T, self.length + T, dtype=torch.bool).tril()


BROKEN_CACHES = (FirstTokenNeverStored, PositionsRestart, remembers_last_prompt, MaskTopLeft)


class AdvancesPerLayer(LearnersCache):
    """append moves the length itself: layer 1 writes behind layer 0's new tokens."""

    def append(self, layer, k, v):
        all_k, all_v = super().append(layer, k, v)
        self.length += k.shape[2]
        return all_k, all_v

    def advance(self, T):
        pass


def top_left_attention(q, k, v, old_k, old_v):
    """is_causal=True beside cached keys: a single query sees key 0 alone (pytorch #144858)."""
    keys, values = torch.cat((old_k, k), dim=1), torch.cat((old_v, v), dim=1)
    return F.scaled_dot_product_attention(q, keys, values, is_causal=True)


def no_mask_for_several(q, k, v, old_k, old_v):
    """Right for one token, but in a chunk a query sees the keys after it (torchtune #959)."""
    keys, values = torch.cat((old_k, k), dim=1), torch.cat((old_v, v), dim=1)
    return F.scaled_dot_product_attention(q, keys, values)


def old_keys_forgotten(q, k, v, old_k, old_v):
    """The new tokens see each other and nothing before them."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def newest_first(q, k, v, old_k, old_v):
    """The new keys are put before the old ones, and the mask hides the wrong ones."""
    keys, values = torch.cat((k, old_k), dim=1), torch.cat((v, old_v), dim=1)
    T, S = q.shape[1], keys.shape[1]
    sees = torch.ones(T, S, dtype=torch.bool).tril(diagonal=S - T)
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=sees)


def _agrees(model, make_cache, chunks, caches=2, same=torch.allclose):
    """Whether each of several caches, fed in these pieces, gives what is given without one."""
    ids = torch.arange(7)[None]
    for _ in range(caches):
        cache = make_cache(model, model.config.block_size)
        made = torch.cat([model.hidden(chunk, cache) for chunk in ids.split(chunks, dim=1)], dim=1)
        if not same(made, model.hidden(ids)):
            return False
    return True


def one_prompt_is_enough(model, make_cache):
    """A test with one prompt passes a cache that remembers it."""
    return _agrees(model, make_cache, [3, 1, 2, 1], caches=1)


def one_forward_is_enough(model, make_cache):
    """A test that only prefills passes all caches that fail afterwards."""
    return _agrees(model, make_cache, [7])


def one_token_at_a_time(model, make_cache):
    """Prefill and single tokens: a mask that is wrong for a later chunk passes."""
    return _agrees(model, make_cache, [4, 1, 1, 1])


def bits_must_be_equal(model, make_cache):
    """Asks for equal bits, and sums in another order never have them: rejects the right cache."""
    return _agrees(model, make_cache, [3, 1, 2, 1], same=torch.equal)


def same_shape_is_enough(model, make_cache):
    """Compares shapes, and a wrong position has the right shape."""
    return _agrees(model, make_cache, [3, 1, 2, 1], same=lambda a, b: a.shape == b.shape)


# Lesson 09. Prefill, decode, and the edge of the context


def fresh_cache_per_chunk(model, ids, chunks, cache):
    """Each chunk starts a cache of its own: it knows nothing of the chunks before it."""
    for chunk in ids.split(chunks, dim=1):
        hidden = model.hidden(chunk, KVCache(model, model.config.block_size))
    return model.head(hidden[:, -1])


def logits_of_first_chunk(model, ids, chunks, cache):
    """Keeps the first chunk's logits: the next token is chosen in the middle of the prompt."""
    hidden = [model.hidden(chunk, cache) for chunk in ids.split(chunks, dim=1)]
    return model.head(hidden[0][:, -1])


def rest_dropped(model, ids, chunks, cache):
    """Takes all chunks to be as long as the first: what remains of the prompt is never read."""
    size = chunks[0]
    for i in range(ids.shape[1] // size):
        hidden = model.hidden(ids[:, i * size : (i + 1) * size], cache)
    return model.head(hidden[:, -1])


def edge_read_twice(model, ids, chunks, cache):
    """Chunks overlap by one: a token stands in the cache twice and moves all that follow."""
    start = 0
    for size in chunks:
        hidden = model.hidden(ids[:, max(0, start - 1) : start + size], cache)
        start += size
    return model.head(hidden[:, -1])


def all_at_once(model, ids, chunks, cache):
    """The right logits from one forward: a server's other requests wait as long as before."""
    return model.head(model.hidden(ids, cache)[:, -1])


def _over_the_edge(model, ids, max_new_tokens, at_edge):
    """A loop with a cache; at_edge(cache, ids, new) says what is fed once the cache is full."""
    window = model.config.block_size
    cache = KVCache(model, capacity=window)
    new = ids[:, -window:]
    for _ in range(max_new_tokens):
        if cache.length == window:
            new = at_edge(cache, ids, new)
        new = model.head(model.hidden(new, cache)[:, -1]).argmax(dim=-1, keepdim=True)
        ids = torch.cat((ids, new), dim=1)
    return ids


def naive_slide(model, ids, max_new_tokens):
    """Moves the cached keys one place to the left; they still say where they were made."""

    def slide(cache, ids, new):
        cache.memory[:] = cache.memory.roll(-1, dims=4)
        cache.length -= 1
        return new

    return _over_the_edge(model, ids, max_new_tokens, slide)


def starts_afresh(model, ids, max_new_tokens):
    """Empties the full cache and feeds the newest token alone: the text so far is forgotten."""

    def empty(cache, ids, new):
        cache.length = 0
        return new

    return _over_the_edge(model, ids, max_new_tokens, empty)


def half_a_window(model, ids, max_new_tokens):
    """Drops half of the window at the edge: far cheaper, and other tokens than the plain loop's."""

    def halve(cache, ids, new):
        cache.length = 0
        return ids[:, -cache.capacity // 2 :]

    return _over_the_edge(model, ids, max_new_tokens, halve)


def no_cache_at_all(model, ids, max_new_tokens):
    """Right tokens at the plain loop's price, before the edge too."""
    window = model.config.block_size
    for _ in range(max_new_tokens):
        last = model.head(model.hidden(ids[:, -window:])[:, -1])
        ids = torch.cat((ids, last.argmax(dim=-1, keepdim=True)), dim=1)
    return ids


def edge_costs_nothing(P, N, block_size):
    """P + N - 1, as before the edge."""
    return P + N - 1 if N else 0


def edge_one_step_early(P, N, block_size):
    """Charges a prefill for the step that fills the last position; that one still fits."""
    if N == 0:
        return 0
    inside = max(0, min(N - 1, block_size - P - 1))
    return min(P, block_size) + inside + (N - 1 - inside) * block_size


def one_prefill_at_the_edge(P, N, block_size):
    """Pays for a single prefill at the edge, as if the positions moved once."""
    if N == 0:
        return 0
    prefill = min(P, block_size)
    return prefill + N - 1 + (block_size - 1 if prefill + N - 1 > block_size else 0)


# Lesson 10. Many prompts in one forward


def read_at_a_pad(model, prompts):
    """Pads on the right and reads [:, -1]: transformers #3167 and #30378."""
    T = max(map(len, prompts))
    ids = torch.tensor([[*ids, *[0] * (T - len(ids))] for ids in prompts])
    return model.head(model.hidden(ids)[:, -1])


def untold_pads(model, prompts):
    """Pads on the left, without mask and positions: transformers #3021, unsloth PR #4078."""
    T = max(map(len, prompts))
    ids = torch.tensor([[*[0] * (T - len(ids)), *ids] for ids in prompts])
    return model.head(model.hidden(ids)[:, -1])


class MaskedPads:
    """For one forward over rows with pads on the left: hides them, and moves no position."""

    def __init__(self, pads):
        self.pads = torch.tensor(pads)[:, None]  # (B, 1)

    def positions(self, T):
        return torch.arange(T)

    def mask(self, T):
        visible = (torch.arange(T) >= self.pads)[:, None]  # (B, 1, T)
        sees = torch.ones(T, T, dtype=torch.bool).tril() & visible
        return (sees | torch.eye(T, dtype=torch.bool))[:, None]  # (B, 1, T, T)

    def append(self, layer, k, v):
        return k, v

    def advance(self, T):
        pass


def masked_but_not_shifted(model, prompts):
    """Pads on the left and masks them, but a prompt's positions begin behind its pads: trl #469."""
    T = max(map(len, prompts))
    pads = [T - len(ids) for ids in prompts]
    ids = torch.tensor([[0] * n + list(ids) for n, ids in zip(pads, prompts, strict=True)])
    return model.head(model.hidden(ids, MaskedPads(pads))[:, -1])


def cut_to_the_shortest(model, prompts):
    """Makes the batch rectangular by throwing the longer prompts' ends away."""
    T = min(map(len, prompts))
    return model.head(model.hidden(torch.tensor([ids[:T] for ids in prompts]))[:, -1])


def a_forward_for_each_prompt(model, prompts):
    """Right logits, and nothing is shared: the weights are read again for each prompt."""
    return torch.cat([model.head(model.hidden(torch.tensor([ids]))[:, -1]) for ids in prompts])


def one_count_for_all(model, prompts):
    """Reads every row at the last position of the first one."""
    T = max(map(len, prompts))
    ids = torch.tensor([[*ids, *[0] * (T - len(ids))] for ids in prompts])
    return model.head(model.hidden(ids)[:, len(prompts[0]) - 1])


def _write_rows(model, ids, limits, over, keeps, first_for_all=False):
    """A loop over all rows until `over`; row by row, a token is kept if `keeps` says so."""
    new = [[] for _ in limits]
    for step in range(max(limits)):
        next_id = model.head(model.hidden(ids)[:, -1]).argmax(dim=-1)
        if first_for_all and step == 0:
            next_id = next_id[:1].expand(len(limits))
        for row, token in enumerate(next_id.tolist()):
            if keeps(new[row], limits[row]):
                new[row].append(token)
        if over(next_id, new):
            break
        ids = torch.cat((ids, next_id[:, None]), dim=1)
    return new


def _below(text, limit):
    return len(text) < limit


def if_next_id_is_eos(model, ids, limits, eos):
    """`if next_id == eos` on a batch: right for one row, and for several an error."""
    return _write_rows(model, ids, limits, lambda next_id, new: next_id == eos, _below)


def ends_with_the_first(model, ids, limits, eos):
    """The batch is over when any row has made the end token."""
    return _write_rows(model, ids, limits, lambda next_id, new: (next_id == eos).any(), _below)


def goes_on_until_the_last(model, ids, limits, eos):
    """Waits until all rows have made the end token, and returns what came behind it."""

    def all_ended(next_id, new):
        return all(eos in text for text in new)

    return _write_rows(model, ids, limits, all_ended, _below)


def first_row_for_all(model, ids, limits, eos):
    """The first token is chosen once and copied to all rows: nanochat PR #201."""

    def goes_on(text, limit):
        return len(text) < limit and eos not in text

    return _write_rows(model, ids, limits, lambda *_: False, goes_on, first_for_all=True)


def one_limit_for_all(model, ids, limits, eos):
    """Takes the largest limit for the limit of all."""
    return _write_rows(model, ids, limits, lambda *_: False, lambda text, limit: eos not in text)


def _ladder(probs, us):
    ends = probs.cumsum(dim=-1)
    return (ends <= torch.tensor(us, dtype=ends.dtype)[:, None]).sum(dim=-1)


def temperatures_across(logits, temperatures, us):
    """Lacks the [:, None]: an error unless B equals V, and then each column has a temperature."""
    scale = torch.tensor(temperatures, dtype=logits.dtype)
    tokens = _ladder((logits / scale.where(scale > 0, 1)).softmax(dim=-1), us)
    return tokens.where(scale > 0, logits.argmax(dim=-1))


def all_greedy(logits, temperatures, us):
    """One row of temperature 0 makes all rows greedy: a test on the whole batch."""
    if 0 in temperatures:
        return logits.argmax(dim=-1)
    scale = torch.tensor(temperatures, dtype=logits.dtype)[:, None]
    return _ladder((logits / scale).softmax(dim=-1), us)


def zero_divides_a_row(logits, temperatures, us):
    """Divides by 0 in the greedy row: NaN, and what comes out of it is no choice."""
    scale = torch.tensor(temperatures, dtype=logits.dtype)[:, None]
    return _ladder((logits / scale).softmax(dim=-1), us)


def settings_of_row_0(logits, temperatures, us):
    """Reads the settings of the first request and uses them for the batch."""
    if temperatures[0] == 0:
        return logits.argmax(dim=-1)
    return _ladder((logits / temperatures[0]).softmax(dim=-1), us)


def one_number_for_the_batch(logits, temperatures, us):
    """One number for all rows, as from one generator that is asked once."""
    scale = torch.tensor(temperatures, dtype=logits.dtype)
    probs = (logits / scale.where(scale > 0, 1)[:, None]).softmax(dim=-1)
    return _ladder(probs, us[:1] * len(us)).where(scale > 0, logits.argmax(dim=-1))


# Lesson 11. How does a server run the loop?


def shortest_first(running, waiting, slots, budget):
    """Serves short prompts first: whoever has a long one may wait for ever."""
    return next_step(running, sorted(waiting), slots, budget)


def a_budget_for_each(running, waiting, slots, budget):
    """Gives each prompt the whole budget: one step may take as long as many."""
    free = slots - len(running)
    return [min(left, budget) or 1 for left in running + waiting[:free]]


def decoders_are_free(running, waiting, slots, budget):
    """Doesn't count the decoding requests' tokens: the step is over the budget by their number."""
    return next_step(running, waiting, slots, budget + running.count(0))


def slots_forgotten(running, waiting, slots, budget):
    """Admits as long as the budget lasts, and the cache has no room."""
    return next_step(running, waiting, slots + len(waiting), budget)


def prompts_before_tokens(running, waiting, slots, budget):
    """Prompts go first, and whoever decodes waits while there are any."""
    feeds = []
    for left in running + waiting[: slots - len(running)]:
        feeds.append(min(left, budget))
        budget -= feeds[-1]
    return feeds


def admitted_for_nothing(running, waiting, slots, budget):
    """Admits whoever finds a slot, though nothing is left of the budget to feed."""
    feeds = next_step(running, waiting, slots, budget)
    admitted = min(slots - len(running), len(waiting))
    return feeds + [0] * (len(running) + admitted - len(feeds))


def queue_consumed(running, waiting, slots, budget):
    """Takes the admitted ones out of the caller's list, who does so, too."""
    feeds = next_step(running, waiting, slots, budget)
    del waiting[: len(feeds) - len(running)]
    return feeds


def stops_the_client(engine, request):
    """A cancel that only stops the client, who no longer listens: the engine never hears of it."""
    return request.finish_reason is None


def only_marked(engine, request):
    """Marks the request; it keeps its slot, or its place in the queue, until its turn comes."""
    if request.finish_reason:
        return False
    request.finish_reason = "cancelled"
    return True


def forgets_the_queue(engine, request):
    """Cancels what runs; who still waits is told yes, and runs later."""
    if request.finish_reason:
        return False
    if request in engine.scheduler.running:
        return cancel_request(engine, request)
    return True


def hole_left_open(engine, request):
    """Closes the gap in the list and not in the cache: the next row reads another one's keys."""
    if request.finish_reason:
        return False
    request.finish_reason = "cancelled"
    if request in engine.scheduler.waiting:
        engine.scheduler.waiting.remove(request)
    else:
        engine.scheduler.running.remove(request)
    return True


def cancels_the_finished(engine, request):
    """Never asks whether there is anything to cancel: a finished text is reported as cancelled."""
    if request in (*engine.scheduler.waiting, *engine.scheduler.running):
        return cancel_request(engine, request)
    request.finish_reason = "cancelled"
    return True


def tokens_dropped(engine, request):
    """Throws away what the client has already been shown."""
    cancelled = cancel_request(engine, request)
    if cancelled:
        request.ids = list(request.prompt)
    return cancelled


class LosesSlotInPrefill(Engine):
    """A request that is cancelled before its first token never gives its slot back."""

    def cancel(self, request):
        reads = request in self.scheduler.running and not request.tokens
        cancelled = super().cancel(request)
        self.scheduler.slots -= cancelled and reads
        return cancelled


class LosesSlotOfFailed(Engine):
    """A request whose sampler or stop check raises never gives its slot back."""

    def _leave(self, request):
        super()._leave(request)
        self.scheduler.slots -= request.error is not None


class StopsTheClient(Engine):
    """A cancel of who waits only stops the client: its turn comes, and it runs to its end."""

    def cancel(self, request):
        return request in self.scheduler.waiting or super().cancel(request)


class LosesTheNext(Engine):
    """When a running request is cancelled, the next in the queue is dropped instead of admitted."""

    def cancel(self, request):
        ran = request in self.scheduler.running
        cancelled = super().cancel(request)
        if ran and self.scheduler.waiting:
            self.scheduler.waiting.popleft()
        return cancelled


BROKEN_ENGINES = (LosesSlotInPrefill, LosesSlotOfFailed, StopsTheClient, LosesTheNext)


def _asks(prompt_tokens, new=5):
    return Request([1] * prompt_tokens, new, greedy, lambda token: None)


def nobody_cancels(make_engine):
    """A test in which all requests run to their end: no engine fails it."""
    engine = make_engine(2)
    requests = [engine.submit(_asks(3)) for _ in range(5)]
    while engine.step():
        pass
    return all(request.finish_reason for request in requests)


def lists_are_empty(make_engine):
    """Asks whether the lists are empty at the end: with a slot less, they are, too."""
    engine = make_engine(2)
    requests = [engine.submit(_asks(20)) for _ in range(3)]
    engine.step()
    engine.cancel(requests[0])
    while engine.step():
        pass
    return not engine.scheduler.running and not engine.scheduler.waiting


def only_cancels(make_engine):
    """Cancels in prefill until no slot is left, but lets nothing fail."""
    engine = make_engine(1)
    engine.cancel(engine.submit(_asks(20)))
    reading = engine.submit(_asks(20))
    engine.step()
    engine.cancel(reading)
    last = engine.submit(_asks(3))
    while engine.step():
        pass
    return last.finish_reason == "max_new_tokens"


def no_failure_allowed(make_engine):
    """Takes a request that fails, as it should, for a fault of the engine."""
    engine = make_engine(2)
    failing = engine.submit(Request([1], 5, lambda logits: None, lambda token: None))
    while engine.step():
        pass
    return failing.finish_reason == "max_new_tokens"


# Lesson 12. Reading the real engines


def runs_without_an_error(loop):
    """Runs everything once and compares nothing: bugs that raise no error pass."""
    model = random_model()
    loop.generate(model, [1, 2, 3], 4, loop.Rule(top_k=5, top_p=0.9), loop.Stop(eos=0))
    loop.generate_batch(model, [[1], [2, 3]], 4, [loop.Rule()] * 2, [loop.Stop()] * 2)


def greedy_on_one_text(loop):
    """Compares one greedy text with the plain loop: no draw, no tie, no second row."""
    model, prompt = random_model(), [3, 1, 2]
    tokens, _ = loop.generate(model, prompt, 5, loop.Rule(temperature=0), loop.Stop())
    ids = torch.tensor([[3, 1, 2]])
    for _ in range(5):
        ids = torch.cat((ids, model(ids)[:, -1].argmax(dim=-1, keepdim=True)), dim=1)
    assert tokens == ids[0, 3:].tolist()


def filters_alone(loop):
    """Tests the functions that are easy to test, and not the loop around them."""
    assert loop.keep_top_k(torch.zeros(5), 2).isfinite().sum() == 2
    assert loop.keep_top_p(torch.tensor([0.5, 0.3, 0.2]).log(), 0.6).isfinite().sum() == 2
    assert loop.pick(torch.tensor([0, 0.5, 0, 0.5]), 0.7) == 3
    rule = loop.Rule()
    assert len({rule(torch.zeros(1000)) for _ in range(5)}) > 1
    stop = loop.Stop(sequence=[1, 2])
    assert [stop(token) for token in (1, 1, 2)][-1] == "sequence"


def prompt_and_completion(loop):
    """Expects the prompt in the result, as other loops return it: rejects the clean file."""
    tokens, _ = loop.generate(random_model(), [3, 1, 2], 2, loop.Rule(), loop.Stop())
    assert tokens[:3] == [3, 1, 2]


def do_sample_forgotten(temperature, top_k, top_p, min_p, max_new_tokens):
    """Leaves do_sample at False: all other settings are ignored."""
    settings = transformers_settings(temperature, top_k, top_p, min_p, max_new_tokens)
    del settings["do_sample"]
    return settings


def top_k_left_to_its_default(temperature, top_k, top_p, min_p, max_new_tokens):
    """Says nothing of a top_k that is off: then it is 50."""
    settings = transformers_settings(temperature, top_k, top_p, min_p, max_new_tokens)
    return {name: value for name, value in settings.items() if value or name == "do_sample"}


def temperature_0_passed_on(temperature, top_k, top_p, min_p, max_new_tokens):
    """Samples at temperature 0, which is refused there."""
    settings = transformers_settings(1.0, top_k, top_p, min_p, max_new_tokens)
    return settings | {"temperature": temperature}


def max_length_for_new_tokens(temperature, top_k, top_p, min_p, max_new_tokens):
    """Limits the length of the text, prompt and all."""
    settings = transformers_settings(temperature, top_k, top_p, min_p, max_new_tokens)
    settings["max_length"] = settings.pop("max_new_tokens")
    return settings


MUSEUM: dict[str, dict[Callable, str]] = {
    "01a": {
        prompt_changed: "wrote into the caller's list",
        end_token_ignored: "goes on after the end token",
        end_token_kept: "is not part of it",
        any_end_token_stops: "an end token in the prompt",
        last_token_alone: "is the first that differs: it should read",
        logits_in_advance: "a forward whose logits no token is chosen from",
        prompt_left_out: "the new tokens alone",
    },
    "01b": {
        prompt_costs_forwards: "reads all of the prompt at once",
        end_token_is_free: "it costs a forward",
        end_not_reached: "the loop never gets to step",
        first_token_is_free: "the first new token takes a forward",
    },
    "02a": {
        row_of_the_token_itself: "it has read that token already",
        softmax_along_the_text: "softmax along the text",
        a_forward_for_each_prefix: "already the last row of a prefix",
        logarithms: "these are logarithms",
    },
    "02b": {
        length_is_right: "misses second_to_last_row",
        one_token_prompt: "misses second_to_last_row",
        one_text_alone: "misses first_text_for_all",
        every_row_the_same: "rejects a right loop",
    },
    "02c": {
        sliced_after_the_head: "hand the head the last position alone",
        head_of_first_position: "yours is row 0 of text 0",
        last_of_first_text: "the last of text 1",
        position_kept: "one row of logits for each text",
    },
    "03a": {
        temperature_multiplies: "upside down",
        probabilities_divided: "divide the logits, not the probabilities",
        zero_divides: "temperature 0 can't divide",
        maximum_without_keepdim: "a missing keepdim",
        logits_changed: "wrote into its input",
        overflows: "a number overflowed",
        all_of_a_tie: "on a tie",
    },
    "03b": {
        ratio_upside_down: "the likelier one must gain",
        ratio_divided: "the logarithm of a ratio",
        ratio_unmoved: "the ratio at temperature 1",
        probabilities_as_logits: "the logarithm of a ratio",
    },
    "04a": {
        ties_stay: "ties with the last one kept",
        first_ids: "the first ids, not the largest logits",
        mask_too_small: "mask with minus infinity",
        wrong_end: "the bar is the smallest of the kept",
        k_above_vocabulary: "your code raised",
        logits_masked_in_place: "wrote into its input",
    },
    "04b": {
        crossing_token_dropped: "the token that crosses",
        nothing_left: "nothing is left",
        mask_of_ranks: "a mask of ranks",
        sum_of_logarithms: "everything stays",
        sum_by_id: "in the order of the ids",
        order_of_row_0: "each row has its own order",
        one_more_than_needed: "the smallest set",
    },
    "04c": {
        at_temperature_1: "temperature 1 changes nothing",
        all_alike: "stay equal at any temperature",
        too_sure: "the same tokens in both orders",
        cold_twice: "above 1",
        no_distribution: "sum to 1",
    },
    "05a": {
        edge_to_the_left: "u is on the edge",
        sum_taken_for_1: "a little less than 1",
        gap_given_to_the_last: "has probability 0",
        rank_for_id: "that is a rank",
        likeliest_first: "your ladder is sorted",
        likeliest_only: "u has no effect",
        own_draw: "u alone decides",
    },
    "05b": {
        same_tokens_twice: "your test misses seeded_at_every_token",
        varied_tokens: "your test misses never_seeded",
        seeds_not_compared: "your test misses always_seed_0",
        one_run_after_the_other: "your test misses shared_generator",
        sure_model: "your test rejects a right one",
    },
    "05c": {
        one_generator_for_all: "a generator that all rows share",
        seeded_by_row: "seeded with its row",
        seeded_at_every_turn: "the first number again",
        first_token_for_all: "row 0's token",
        one_number_for_all: "the number of row 0",
        flat_tokens: "one column",
    },
    "06a": {
        limit_before_eos: "end-of-text comes first",
        prompt_counted_as_new: "is the prompt counted as new tokens?",
        one_token_too_many: "one token too many",
        one_end_token_only: "end-of-text is missed",
    },
    "06b": {
        stop_string_leaks: "leaked piece by piece",
        partial_progress_forgotten: "partial progress is forgotten",
        held_too_long: "comes too late",
        held_text_lost: "held back for it is lost",
    },
    "06c": {
        each_token_alone: "a character cut in two was shown in halves",
        halves_ignored: "a character is lost",
        waits_for_clean_text: "one bad byte holds back all that follows",
        cut_character_raises: "UnicodeDecodeError",
    },
    "07a": {
        last_token_fed_too: "you feed the last token too",
        prompt_read_once: "reads the prompt again at each turn",
        no_tokens_cost_a_prefill: "no forward is run",
    },
    "07b": {
        one_forward_too_many: "one forward too many",
        one_token_too_few: "the last one is missing",
        forward_for_nothing: "a forward is run for nothing",
        head_on_every_row: "the head ran on rows that no token is chosen from",
    },
    "07c": {
        positions_only: "the fixed cost is paid at each",
        fixed_cost_once: "the fixed cost is paid at each",
        upside_down: "upside down",
    },
    "08a": {
        FirstTokenNeverStored: "keys of position 0: never stored",
        PositionsRestart: "positions restart",
        remembers_last_prompt: "remembers the prompt before it",
        MaskTopLeft: "aligned to the top left",
        AdvancesPerLayer: "did the length move before advance?",
    },
    "08b": {
        top_left_attention: "a mask aligned to the top left",
        no_mask_for_several: "no mask",
        old_keys_forgotten: "the old ones forgotten",
        newest_first: "new keys put before the old ones",
    },
    "08c": {
        one_prompt_is_enough: "misses remembers_last_prompt",
        one_forward_is_enough: "misses FirstTokenNeverStored",
        one_token_at_a_time: "misses MaskTopLeft",
        bits_must_be_equal: "rejects a right cache",
        same_shape_is_enough: "misses FirstTokenNeverStored",
    },
    "09a": {
        fresh_cache_per_chunk: "into the cache that was handed in",
        logits_of_first_chunk: "the logits of position 0",
        rest_dropped: "the rest was not used",
        edge_read_twice: "a token is read twice",
        all_at_once: "one forward for each chunk",
    },
    "09b": {
        naive_slide: "beyond the edge",
        starts_afresh: "beyond the edge",
        half_a_window: "beyond the edge",
        no_cache_at_all: "before the edge one position a step is enough",
    },
    "09c": {
        edge_costs_nothing: "1 prefills of 8 beyond its edge",
        edge_one_step_early: "0 prefills of 8 beyond its edge",
        one_prefill_at_the_edge: "2 prefills of 8 beyond its edge",
    },
    "10a": {
        read_at_a_pad: "this row was read at a pad",
        untold_pads: "of which the model was not told",
        masked_but_not_shifted: "masked, but the positions are not shifted",
        cut_to_the_shortest: "cut to the length of the shortest",
        a_forward_for_each_prompt: "the prompts are to share one forward",
        one_count_for_all: "row 1",
    },
    "10b": {
        if_next_id_is_eos: "your code raised",
        ends_with_the_first: "another row's end or limit is not its own",
        goes_on_until_the_last: "goes on behind its end token",
        first_row_for_all: "its first token is that of another row",
        one_limit_for_all: "goes on behind its own limit",
    },
    "10c": {
        temperatures_across: "only because B equals V",
        all_greedy: "all became greedy",
        zero_divides_a_row: "nothing to divide by",
        settings_of_row_0: "the temperature of row 0",
        one_number_for_the_batch: "the number of row 0",
    },
    "11a": {
        shortest_first: "first come, first served",
        a_budget_for_each: "over the budget",
        decoders_are_free: "decoding requests count, too",
        slots_forgotten: "who finds none free goes on waiting",
        prompts_before_tokens: "it feeds its newest token",
        admitted_for_nothing: "took a slot in vain",
        queue_consumed: "you wrote into them",
    },
    "11b": {
        stops_the_client: "finish_reason",
        only_marked: "only the client has stopped",
        forgets_the_queue: "finish_reason",
        hole_left_open: "another request's tokens changed",
        cancels_the_finished: "nothing to cancel",
        tokens_dropped: "what was made so far stays",
    },
    "11c": {
        nobody_cancels: "misses LosesSlotInPrefill",
        lists_are_empty: "misses LosesSlotInPrefill",
        only_cancels: "misses LosesSlotOfFailed",
        no_failure_allowed: "rejects a right engine",
    },
    "12a": {
        runs_without_an_error: "0 caught",
        greedy_on_one_text: "2 caught",
        filters_alone: "5 caught",
        prompt_and_completion: "your tests reject the clean file",
    },
    "12b": {
        do_sample_forgotten: "without do_sample=True the choice is greedy",
        top_k_left_to_its_default: "that is the default of top_k",
        temperature_0_passed_on: "has to be above 0",
        max_length_for_new_tokens: "max_length counts the prompt",
    },
}
