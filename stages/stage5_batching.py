"""Stage 5: several requests in one forward pass.

A decode step reads all weights of the model to make one token. Reading them for eight tokens, one
of each of eight texts, takes little longer. So the texts share the forward pass, and each keeps
what is its own: its prompt, its sampler, its stop check, its end.

Prompts differ in length, so the shorter ones are filled up on the right with pads, tokens whose
results nobody reads. What makes a row of such a batch equal to the same text alone:

- positions: each row counts its own;
- mask: each row sees its own past and nothing behind it;
- last position: row b's is at counts[b] - 1, which need not be the end of the row;
- a sampler and a stop check for each row: neighbours change neither draws nor ends.

A row that ends leaves, and the last one moves into its place: nothing more is computed for it.

Saves: forward passes. Costs: pads are computed in vain, and a batch is over when its longest text
is, though its last forwards hold few rows: stage 6 fills them up again. Stays equal: the tokens of
each request, as from stage 4 alone; the logits up to rounding. There is no context="crop" here,
which would be a new prefill for each token: a full context ends a request.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import index
from time import perf_counter

import torch

from model import GPT
from stages import stage4_kv_cache as stage4
from stages.stage2_sampling import Choose, Sampler
from stages.stage3_stopping import ShouldStop, StopCheck, token_budget
from support.checkpoint import TINY, load
from support.counting import counting
from support.tokenizer import decode


@dataclass(eq=False)
class Request:
    """One text to make, by rules of its own. A run fills in the rest; make a new one for each."""

    prompt: Sequence[int]  # ids
    max_new_tokens: int
    choose: Choose  # its own: two requests can't share a Sampler
    should_stop: ShouldStop  # its own
    ids: list[int] = field(init=False)  # the prompt, then the new tokens
    finish_reason: str | None = field(default=None, init=False)
    end: int = field(default=0, init=False)  # len(ids) at which the limit is reached
    limit_reason: str | None = field(default=None, init=False)  # what to call that limit

    def __post_init__(self):
        try:
            self.prompt = [index(i) for i in self.prompt]
        except TypeError as error:
            raise ValueError(f"prompt must be ids, such as [1, 2]: {error}") from None
        self.ids = list(self.prompt)

    @property
    def tokens(self) -> list[int]:
        """The new tokens so far."""
        return self.ids[len(self.prompt) :]

    def start(self, block_size: int) -> None:
        """Work out the limit; with no token to make, the request ends here.

        ValueError for a prompt that is empty or longer than block_size, and for a second run.
        """
        if self.limit_reason:
            raise ValueError("this request has run: its sampler is used up, make a new request")
        tokens = len(self.prompt)
        if not 0 < tokens <= block_size:
            raise ValueError(f"prompt has {tokens} tokens: the model reads 1 to {block_size}")
        ids = torch.tensor([self.prompt])
        limit, self.limit_reason = token_budget(ids, self.max_new_tokens, block_size, "stop")
        self.end = tokens + limit
        self.finish_reason = self.at_limit()

    def at_limit(self) -> str | None:
        """Why there may be no further token, "max_new_tokens" or "context_full", or None."""
        return self.limit_reason if len(self.ids) == self.end else None


class Slots:
    """A KV cache whose rows, the slots, each belong to one request and have their own length.

    As in stage 4 the memory is allocated once. What `length` was there is a list here.
    """

    def __init__(self, model: GPT, rows: int, capacity: int):
        config, weight = model.config, model.wte.weight
        self.capacity = min(capacity, config.block_size)
        D = config.n_embd // config.n_head
        shape = (config.n_layer, 2, rows, config.n_head, self.capacity, D)
        with torch.inference_mode(False):  # as in stage 4
            self.memory = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
        self.lengths = [0] * rows
        self.written = [0] * rows  # how far forwards have written, those that broke off too

    def view(self, rows: slice, counts: Sequence[int]) -> "View":
        """The cache of one forward, whose row b feeds counts[b] tokens; ValueError without room."""
        for length, count in zip(self.lengths[rows], counts, strict=True):
            if not 0 < count <= self.capacity - length:
                raise ValueError(
                    f"{count} new tokens after {length} cached ones: "
                    f"a slot takes at least 1 and holds {self.capacity}"
                )
        view = View(self, rows, counts)
        self.written[rows] = map(max, self.written[rows], view.ends)
        return view

    @torch.inference_mode()
    def move(self, source: int, target: int) -> None:
        """Copy a row over another one, whose request has ended."""
        end = max(self.written[source], self.written[target])  # behind it, both are zeros
        self.memory[:, :, target, :, :end] = self.memory[:, :, source, :, :end]
        self.lengths[target], self.written[target] = self.lengths[source], self.written[source]

    @torch.inference_mode()
    def clear(self, row: int) -> None:
        """Make a row as new: had its request computed NaN, no mask would hide it from the next."""
        self.memory[:, :, row, :, : self.written[row]] = 0
        self.lengths[row] = self.written[row] = 0


class View:
    """Some rows of the slots during one forward, for the model: it is stage 4's cache, per row.

    Row 0 has 3 tokens in its slot and feeds 1, row 1 has 1 and feeds 2, so T = 2 and S = 4:

               positions    mask of query 0    mask of query 1
        row 0 |  3  pad         1 1 1 1            (a pad)
        row 1 |  1   2          1 1 0 0            1 1 1 0

    A pad takes the position of the last token before it, and with it a row of the mask: something
    that exists has to stand there, and nobody reads what comes out.
    """

    def __init__(self, slots: Slots, rows: slice, counts: Sequence[int]):
        self.slots, self.rows = slots, rows
        self.memory = slots.memory[:, :, rows]  # a slice, so the slots' own memory: no copy
        lengths, device = slots.lengths[rows], slots.memory.device
        self.ends = [n + count for n, count in zip(lengths, counts, strict=True)]
        self.S = max(self.ends)
        position = [
            [min(n + t, end - 1) for t in range(max(counts))]
            for n, end in zip(lengths, self.ends, strict=True)
        ]
        self.position = torch.tensor(position, device=device)  # (B, T)
        # Of each token that is no pad: its row, its place in it, and where in its slot it goes.
        tokens = [(b, t, position[b][t]) for b, count in enumerate(counts) for t in range(count)]
        self.row, self.step, self.at = torch.tensor(tokens, device=device).T

    def positions(self, T: int) -> torch.Tensor:
        """The position of each new token, (B, T)."""
        return self.position

    def mask(self, T: int) -> torch.Tensor | None:
        """Which of S keys each query sees, those up to its own position: (B, 1, T, S).

        None if all have one query, which sees all.
        """
        if T == 1 and min(self.ends) == self.S:
            return None
        keys = torch.arange(self.S, device=self.position.device)
        return (keys <= self.position[..., None])[:, None]  # one mask for all heads

    def append(
        self, layer: int, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write k, v (B, H, T, D), but no pads, into the slots; views of all, (B, H, S, D)."""
        keys, values = (part.data for part in self.memory[layer])  # two (B, H, capacity, D)
        keys[self.row, :, self.at] = k[self.row, :, self.step]
        values[self.row, :, self.at] = v[self.row, :, self.step]
        return keys[:, :, : self.S], values[:, :, : self.S]

    def advance(self, T: int) -> None:
        """All layers have appended: each row's new tokens are now part of its past."""
        self.slots.lengths[self.rows] = self.ends


def pad(rows: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    """Rows of ids as one tensor (B, T), the shorter ones filled up with id 0 on the right."""
    T = max(map(len, rows))
    return torch.tensor([[*ids, *[0] * (T - len(ids))] for ids in rows], device=device)


def last_positions(hidden: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """Of each row what is behind its last token, not behind its pads: (B, T, C) -> (B, C)."""
    return hidden[torch.arange(len(counts)), torch.tensor(counts) - 1]


def remove_ended(running: list[Request], slots: Slots) -> None:
    """Whose text has ended leaves; the last row, if it is another one, takes its place."""
    for b in reversed(range(len(running))):
        if running[b].finish_reason:
            last = running.pop()
            if b < len(running):
                running[b] = last
                slots.move(len(running), b)


@torch.inference_mode()
def generate(model: GPT, requests: Sequence[Request]) -> list[Request]:
    """Run all requests in one batch; they come back with their tokens and finish reasons.

    Raises ValueError for a prompt that doesn't fit, and what a sampler or stop check raises.
    """
    for request in requests:
        request.start(model.config.block_size)
    running = [request for request in requests if not request.finish_reason]  # running[b] is row b
    slots = Slots(model, len(running), capacity=max((r.end for r in running), default=0))
    new = [request.ids for request in running]  # prefill: all of each prompt
    while running:
        counts = [len(ids) for ids in new]
        cache = slots.view(slice(len(running)), counts)
        hidden = model.hidden(pad(new, slots.memory.device), cache)  # forward pass: (B, T, C)
        logits = model.head(last_positions(hidden, counts))  # of each row's last position: (B, V)
        for request, row in zip(running, logits.split(1), strict=True):
            token = int(request.choose(row))  # choose
            request.ids.append(token)  # append
            request.finish_reason = request.should_stop(token) or request.at_limit()  # stop check
        remove_ended(running, slots)
        new = [request.ids[-1:] for request in running]  # decode: the newest token of each
    return list(requests)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the fastest for a model this small
    model, tokenizer = load(TINY)
    prompts = ["", "Once", "Once upon a time", "Once upon a time, a fox lived at the"] * 2
    starts = [tokenizer.encode(prompt) or [tokenizer.eot_token] for prompt in prompts]

    def rules(seed: int) -> tuple[Sampler, StopCheck]:
        return Sampler(0.8, seed=seed), StopCheck(tokenizer, tokenizer.eot_token)

    start = perf_counter()
    with counting(model) as alone:
        texts = []
        for seed, ids in enumerate(starts):
            steps = stage4.generate(model, torch.tensor([ids]), 200, *rules(seed))
            texts.append([step.token for step in steps])
    alone_seconds = perf_counter() - start

    start = perf_counter()
    requests = [Request(ids, 200, *rules(seed)) for seed, ids in enumerate(starts)]
    with counting(model) as together:
        generate(model, requests)
    seconds = perf_counter() - start

    for request in requests[:4]:
        print(f"{decode(tokenizer, request.ids)[:70]!r}... {len(request.tokens)} new")
    places = together.forwards * len(requests)
    print(f"\n{alone.forwards} forwards one after the other, {together.forwards} together.")
    print(f"Padding: {together.positions - alone.positions} of the token-positions fed were pads.")
    print(f"Waiting: {1 - together.head_rows / places:.0%} of the rows were free before the end.")
    print(f"One after the other took {alone_seconds / seconds:.1f} times as long.")
    print(f"Same tokens: {texts == [request.tokens for request in requests]}")
