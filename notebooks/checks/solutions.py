"""Solutions of the exercises, one function or class each, by the name an exercise asks for."""

import codecs
from collections.abc import Callable, Iterable, Iterator
from random import Random
from types import ModuleType

import numpy as np
import torch

from model import GPT, Cache
from notebooks.checks.models import random_model
from stages.stage2_sampling import Choose, greedy
from stages.stage4_kv_cache import KVCache
from stages.stage6_serving import Engine, Request

# Lesson 01. What is the loop?


def generate_ids(
    model: Callable[[list[int]], np.ndarray], ids: list[int], max_new_tokens: int, eos: int
) -> list[int]:
    ids = list(ids)
    for _ in range(max_new_tokens):
        token = int(model(ids).argmax())
        if token == eos:
            break
        ids.append(token)
    return ids


def count_forwards(P: int, N: int, eos_step: int | None) -> int:
    return N if eos_step is None else min(N, eos_step)


# Lesson 02. Why only the last row?


def sentence_probabilities(model: GPT, ids: torch.Tensor) -> torch.Tensor:
    probs = model(ids).softmax(dim=-1)  # (B, T, V)
    asked = ids[:, 1:, None]  # row t is about token t + 1
    return probs[:, :-1].gather(-1, asked)[:, :, 0]


def reads_last_row(model: GPT, loop: Callable[[GPT, torch.Tensor, int], torch.Tensor]) -> bool:
    generator = torch.Generator().manual_seed(0)
    for T in (1, 2, 6):
        text = torch.randint(model.config.vocab_size, (3, T), generator=generator)
        ids = loop(model, text, 4)
        for t in range(T, T + 4):
            if not ids[:, t].equal(model(ids[:, :t])[:, -1].argmax(dim=-1)):
                return False
    return True


def logits_of_last_row(model: GPT, ids: torch.Tensor) -> torch.Tensor:
    hidden = model.hidden(ids)  # (B, T, C)
    return model.head(hidden[:, -1])


# Lesson 03. From logits to a token: greedy and temperature


def temperature(logits: torch.Tensor, T: float) -> torch.Tensor:
    shifted = logits - logits.amax(dim=-1, keepdim=True)
    if T > 0:
        return (shifted / T).softmax(dim=-1)
    only = torch.zeros_like(logits)
    return only.scatter(-1, logits.argmax(dim=-1, keepdim=True), 1.0)


def ratio_at(p1: float, p2: float, T: float) -> float:
    return (p1 / p2) ** (1 / T)


# Lesson 04. Top-k, top-p, and does order matter?


def keep_top_k(logits: torch.Tensor, k: int) -> torch.Tensor:
    order = logits.argsort(dim=-1, descending=True, stable=True)
    return logits.scatter(-1, order[:, k:], -torch.inf)


def keep_top_p(logits: torch.Tensor, p: float) -> torch.Tensor:
    ranked, order = logits.sort(dim=-1, descending=True, stable=True)
    probs = ranked.softmax(dim=-1)
    mass_before = probs.cumsum(dim=-1) - probs
    return logits.scatter(-1, order, ranked.masked_fill(mass_before >= p, -torch.inf))


def order_matters() -> list[tuple[list[float], float, float]]:
    probs = [0.6, 0.3, 0.1]
    cold = probs, 0.5, 0.7  # .78 reaches .7 alone, .6 needs a second token
    hot = probs, 2.0, 0.55  # .6 reaches .55 alone, .47 needs a second token
    return [cold, hot]


# Lesson 05. Can randomness be replayed?


def token_at(probs: torch.Tensor, u: float) -> int:
    ends = probs.double().cumsum(dim=0)
    return int((ends / ends[-1] > u).nonzero()[0])


def replays(make_choose: Callable[[int], Choose]) -> bool:
    flat = torch.zeros(1, 1000)
    rules = make_choose(1), make_choose(1), make_choose(2)
    turns = [[choose(flat).item() for choose in rules] for _ in range(5)]
    one, again, other = zip(*turns, strict=True)
    return one == again and one != other and len(set(one)) > 1


def choose_for(seeds: list[int]) -> Choose:
    numbers = [Random(seed) for seed in seeds]

    def choose(logits: torch.Tensor) -> torch.Tensor:
        rows = logits.double().softmax(dim=-1)
        pairs = zip(rows, numbers, strict=True)
        return torch.tensor([[token_at(row, own.random())] for row, own in pairs])

    return choose


# Lesson 06. When does it stop, and what may be shown?


def finish_reason(
    new_tokens: list[int],
    prompt_tokens: int,
    eos_ids: set[int],
    max_new_tokens: int,
    block_size: int,
) -> str | None:
    if new_tokens[-1] in eos_ids:
        return "eos"
    if len(new_tokens) >= max_new_tokens:
        return "max_new_tokens"
    if prompt_tokens + len(new_tokens) >= block_size:
        return "context_full"
    return None


def hold_back(pieces: Iterable[str], stop: str) -> Iterator[str]:
    held = ""
    for piece in pieces:
        held += piece
        if stop in held:
            yield held[: held.index(stop)]
            return
        undecided = max(n for n in range(len(stop)) if held.endswith(stop[:n]))
        safe = len(held) - undecided
        yield held[:safe]
        held = held[safe:]
    yield held


def show_characters(pieces: Iterable[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for piece in pieces:
        yield decoder.decode(piece)
    yield decoder.decode(b"", final=True)


# Lesson 07. What does the plain loop cost?


def token_positions(P: int, N: int) -> tuple[int, int]:
    plain = N * P + N * (N - 1) // 2
    ideal = P + N - 1 if N > 0 else 0
    return plain, ideal


def lean_generate(model: GPT, ids: torch.Tensor, max_new_tokens: int) -> torch.Tensor:
    for _ in range(max_new_tokens):
        last = model.head(model.hidden(ids)[:, -1])
        token = last.argmax(dim=-1, keepdim=True)
        ids = torch.cat((ids, token), dim=1)
    return ids


def time_ratio(P: int, N: int, fixed: float, per_position: float) -> float:
    plain = N * fixed + (N * P + N * (N - 1) // 2) * per_position
    ideal = N * fixed + (P + N - 1) * per_position
    return plain / ideal


# Lesson 08. What does a KV cache keep?


class LearnersCache:
    def __init__(self, model: GPT, capacity: int):
        config, weight = model.config, model.wte.weight
        D = config.n_embd // config.n_head
        self.memory = weight.new_zeros(config.n_layer, 2, 1, config.n_head, capacity, D)
        self.length = 0

    def positions(self, T: int) -> torch.Tensor:
        return torch.arange(self.length, self.length + T)

    def mask(self, T: int) -> torch.Tensor:
        S = self.length + T
        return torch.ones(T, S, dtype=torch.bool).tril(diagonal=S - T)

    def append(
        self, layer: int, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        end = self.length + k.shape[2]
        keys, values = self.memory[layer]
        keys[:, :, self.length : end] = k
        values[:, :, self.length : end] = v
        return keys[:, :, :end], values[:, :, :end]

    def advance(self, T: int) -> None:
        self.length += T


def cached_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    old_k: torch.Tensor,
    old_v: torch.Tensor,
) -> torch.Tensor:
    keys, values = torch.cat((old_k, k), dim=1), torch.cat((old_v, v), dim=1)  # (H, S, D)
    T, S, D = q.shape[1], keys.shape[1], q.shape[2]
    scores = q @ keys.transpose(1, 2) / D**0.5  # (H, T, S)
    sees = torch.ones(T, S, dtype=torch.bool).tril(diagonal=S - T)
    return scores.masked_fill(~sees, -torch.inf).softmax(dim=-1) @ values


def cache_is_right(model: GPT, make_cache: Callable[[GPT, int], Cache]) -> bool:
    capacity = model.config.block_size
    for seed in range(2):  # a second cache must not remember the first
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(model.config.vocab_size, (1, 7), generator=generator)
        cache = make_cache(model, capacity)
        chunks = [model.hidden(chunk, cache) for chunk in ids.split([3, 1, 2, 1], dim=1)]
        if not torch.allclose(torch.cat(chunks, dim=1), model.hidden(ids)):
            return False
    return True


# Lesson 09. Prefill, decode, and the edge of the context


def chunked_prefill(model: GPT, ids: torch.Tensor, chunks: list[int], cache: Cache) -> torch.Tensor:
    for chunk in ids.split(chunks, dim=1):
        hidden = model.hidden(chunk, cache)
    return model.head(hidden[:, -1])


def cached_crop(model: GPT, ids: torch.Tensor, max_new_tokens: int) -> torch.Tensor:
    window = model.config.block_size
    cache = KVCache(model, capacity=window)
    new = ids[:, -window:]
    for _ in range(max_new_tokens):
        if cache.length + new.shape[1] > window:
            cache.length, new = 0, ids[:, -window:]
        logits = model.head(model.hidden(new, cache)[:, -1])
        new = logits.argmax(dim=-1, keepdim=True)
        ids = torch.cat((ids, new), dim=1)
    return ids


def crop_cost(P: int, N: int, block_size: int) -> int:
    if N == 0:
        return 0
    prefill = min(P, block_size)
    inside = min(N - 1, block_size - prefill)
    beyond = N - 1 - inside
    return prefill + inside + beyond * block_size


# Lesson 10. Many prompts in one forward


def batched_last_logits(model: GPT, prompts: list[list[int]]) -> torch.Tensor:
    counts = [len(ids) for ids in prompts]
    T = max(counts)
    ids = torch.tensor([[*ids, *[0] * (T - len(ids))] for ids in prompts])
    hidden = model.hidden(ids)  # the pads stand behind: no token of a prompt sees them
    last = hidden[torch.arange(len(prompts)), torch.tensor(counts) - 1]
    return model.head(last)


def generate_rows(model: GPT, ids: torch.Tensor, limits: list[int], eos: int) -> list[list[int]]:
    new = [[] for _ in limits]
    running = [row for row, limit in enumerate(limits) if limit > 0]
    ids = ids[running]
    while running:
        tokens = model.head(model.hidden(ids)[:, -1]).argmax(dim=-1)
        ids = torch.cat((ids, tokens[:, None]), dim=1)
        for row, token in zip(running, tokens.tolist(), strict=True):
            new[row].append(token)
        goes_on = [new[row][-1] != eos and len(new[row]) < limits[row] for row in running]
        ids = ids[torch.tensor(goes_on)]
        running = [row for row, on in zip(running, goes_on, strict=True) if on]
    return new


def choose_rows(logits: torch.Tensor, temperatures: list[float], us: list[float]) -> torch.Tensor:
    tokens = []
    for row, temperature, u in zip(logits, temperatures, us, strict=True):
        if temperature == 0:
            tokens.append(int(row.argmax()))
        else:
            ends = (row / temperature).softmax(dim=-1).cumsum(dim=-1)
            tokens.append(int((ends / ends[-1] > u).nonzero()[0]))
    return torch.tensor(tokens)


# Lesson 11. How does a server run the loop?


def next_step(running: list[int], waiting: list[int], slots: int, budget: int) -> list[int]:
    budget -= running.count(0)
    feeds = []
    for left in running:
        feeds.append(min(left, budget) if left else 1)
        budget -= feeds[-1] if left else 0
    for left in waiting[: slots - len(running)]:
        if budget:
            feeds.append(min(left, budget))
            budget -= feeds[-1]
    return feeds


def cancel_request(engine: Engine, request: Request) -> bool:
    if request.finish_reason:
        return False
    request.finish_reason = "cancelled"
    scheduler = engine.scheduler
    if request in scheduler.waiting:
        scheduler.waiting.remove(request)
    else:
        for source, target in scheduler.remove(request):
            engine.slots.move(source, target)
        engine.slots.clear(len(scheduler.running))
    return True


def leaks_no_slot(make_engine: Callable[[int], Engine]) -> bool:
    def go_on(token: int) -> None:
        pass

    def fail(token: int) -> None:
        raise RuntimeError("a stop check that fails")

    slots = 2
    engine = make_engine(slots)

    def submit(prompt_tokens: int, should_stop: Callable = go_on) -> Request:
        return engine.submit(Request([1] * prompt_tokens, 5, greedy, should_stop))

    for _ in range(slots):  # one slot lost may go unnoticed, all of them can't
        in_prefill, queued, fails, decodes, waits = (
            submit(20), submit(3), submit(3, fail), submit(3), submit(3)
        )  # fmt: skip
        engine.step()
        engine.cancel(in_prefill)
        engine.cancel(queued)
        engine.step()
        engine.cancel(decodes)
        while engine.step():
            pass
        ended = [each.finish_reason for each in (in_prefill, queued, decodes, fails, waits)]
        if ended != ["cancelled", "cancelled", "cancelled", "failed", "max_new_tokens"]:
            return False
    together = [submit(3) for _ in range(slots)]
    engine.step()
    return engine.scheduler.running == together


# Lesson 12. Reading the real engines


def examine(loop: ModuleType) -> None:
    assert loop.keep_top_k(torch.zeros(5), 2).isfinite().tolist() == [True, True] + 3 * [False]
    halves = torch.tensor([0.5, 0.25, 0.125, 0.125])
    assert loop.keep_top_p(halves.log(), 0.6).isfinite().tolist() == [True, True, False, False]
    assert loop.pick(torch.tensor([0, 0.5, 0, 0.5]), 0.7) == 3

    flat = torch.zeros(1000)
    rule, same = loop.Rule(seed=1), loop.Rule(seed=1)
    drawn = [rule(flat) for _ in range(5)]
    assert drawn == [same(flat) for _ in range(5)]
    assert len(set(drawn)) > 1

    stop = loop.Stop(sequence=[1, 2])
    assert [stop(token) for token in (1, 1, 2)] == [None, None, "sequence"]

    model, greedy = random_model(block_size=24), loop.Rule(temperature=0)
    prompts = [[7, 3, 9, 4, 1], [5], [2, 8, 6]]
    alone = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        for _ in range(6):
            ids = torch.cat((ids, model(ids)[:, -1].argmax(dim=-1, keepdim=True)), dim=1)
        alone.append(ids[0, len(prompt) :].tolist())

    for chunk in (None, 2):
        given = list(prompts[0])
        made = loop.generate(model, given, 6, greedy, loop.Stop(), chunk)
        assert made == (alone[0], "max_new_tokens")
        assert given == prompts[0]

    for ends in range(3):  # one row meets its end token, and the others go on
        stops = [loop.Stop(eos=alone[b][2] if b == ends else None) for b in range(3)]
        made = loop.generate_batch(model, prompts, 6, [greedy] * 3, stops)
        for b, (tokens, reason) in enumerate(made):
            end = alone[b].index(alone[b][2]) + 1 if b == ends else 6
            assert tokens == alone[b][:end]
            assert reason == ("eos" if b == ends else "max_new_tokens")


def transformers_settings(
    temperature: float, top_k: int | None, top_p: float, min_p: float, max_new_tokens: int
) -> dict:
    if temperature == 0:
        return {"do_sample": False, "max_new_tokens": max_new_tokens}
    return {
        "do_sample": True,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "max_new_tokens": max_new_tokens,
    }
