"""Stage 4: a KV cache. The model reads each token once.

A new token attends to the keys and values of those before it, and these never change: a position
sees only what precedes it. So they are kept. The first forward, the prefill, reads the prompt and
fills the cache; each further one, the decode step, reads one token.

Saves: N tokens after a prompt of P feed P + N - 1 token-positions to the model, where the loop
before fed P + (P + 1) + ... + (P + N - 1). Costs: memory for 2 * n_layer * n_embd numbers a
position. Stays equal: the tokens; the logits up to rounding, since sums run in another order.

At the context's edge, context="crop" drops the oldest token. Position 1 then becomes position 0,
all others move along, and with learned position embeddings so do all keys and values: nothing in
the cache holds any more, and every further token is a prefill of `block_size` tokens.
"""

from collections.abc import Iterator
from time import perf_counter

import torch

import generate as stage0
from model import GPT, causal_mask
from stages.stage2_sampling import Choose, greedy
from stages.stage3_stopping import ShouldStop, Step, StopCheck, token_budget
from support.checkpoint import TINY, load
from support.counting import counting


class KVCache:
    """The keys and values of the tokens so far, of every layer; memory is allocated once.

    There is room for `capacity` positions, but never for more than the model's block_size. One
    number, `length`, is the truth about position: the cache holds positions 0 to length - 1.
    """

    def __init__(self, model: GPT, capacity: int, batch_size: int = 1):
        config, weight = model.config, model.wte.weight
        self.capacity = min(capacity, config.block_size)
        D = config.n_embd // config.n_head
        shape = (config.n_layer, 2, batch_size, config.n_head, self.capacity, D)
        with torch.inference_mode(False):  # an ordinary tensor, whichever mode the caller is in
            # Zeros, not empty memory: a masked value still counts as 0 * value, and 0 * NaN is NaN.
            self.memory = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
            # Parts of it; by .data, writing to one doesn't count as a change of the others.
            self.layers = [(keys.data, values.data) for keys, values in self.memory]
        self.length = 0

    def positions(self, T: int) -> torch.Tensor:
        """The positions of the next T tokens, (T,). ValueError if there is no room for them."""
        end = self.length + T
        if end > self.capacity:
            raise ValueError(
                f"{T} new tokens after {self.length} cached ones, but the cache holds "
                f"{self.capacity}: allocate a larger one, up to the model's block_size"
            )
        return torch.arange(self.length, end, device=self.memory.device)

    def mask(self, T: int) -> torch.Tensor | None:
        """Which of S keys the T new queries see, (T, S); None for a first forward or one query."""
        if T == 1 or self.length == 0:
            return None
        return causal_mask(T, self.length + T, self.memory.device)

    def append(
        self, layer: int, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write k, v (B, H, T, D) behind a layer's cached ones; views of all, (B, H, S, D)."""
        keys, values = self.layers[layer]  # two (B, H, capacity, D)
        end = self.length + k.shape[2]
        keys[:, :, self.length : end] = k
        values[:, :, self.length : end] = v
        return keys[:, :, :end], values[:, :, :end]

    def advance(self, T: int) -> None:
        """All layers have appended their T positions: they are now part of the past."""
        self.length += T


def ordinary(logits: torch.Tensor) -> torch.Tensor:
    """A copy for the caller, who may change it or train with it: inference mode forbids both."""
    with torch.inference_mode(False):
        return logits.clone()


@torch.inference_mode()  # like no_grad, and a step of the embedded model is an eighth faster
def generate(
    model: GPT,
    ids: torch.Tensor,
    max_new_tokens: int,
    choose: Choose,
    should_stop: ShouldStop,
    context: str = "stop",
) -> Iterator[Step]:
    """Yield a step for each new token of one sequence, ids (1, T), until a reason to finish.

    The same steps as stage 3's, from one prefill and one-token forwards.
    """
    limit, limit_reason = token_budget(ids, max_new_tokens, model.config.block_size, context)
    cache = KVCache(model, capacity=ids.shape[1] + limit)
    new = ids  # prefill: all of the prompt
    for count in range(1, limit + 1):
        if ids.shape[1] > cache.capacity:  # cropped, every position moves: prefill again
            cache.length, new = 0, ids[:, -cache.capacity :]
        hidden = model.hidden(new, cache)  # forward pass: (1, T, C)
        logits = model.head(hidden[:, -1])  # logits of the last position: (1, V)
        new = choose(logits)  # choose: (1, 1), and decode: the next forward reads only this token
        ids = torch.cat((ids, new), dim=1)  # append: (1, T + 1)
        reason = should_stop(int(new)) or (limit_reason if count == limit else None)
        yield Step(int(new), ordinary(logits[0]), reason)
        if reason:  # stop check
            return


if __name__ == "__main__":
    torch.set_num_threads(1)  # the fastest for a model this small
    model, tokenizer = load(TINY)
    prompt = torch.tensor([tokenizer.encode("Once upon a time")])

    start = perf_counter()
    should_stop = StopCheck(tokenizer, tokenizer.eot_token)
    with counting(model) as counts:
        steps = list(generate(model, prompt, 200, greedy, should_stop))
    cached_seconds = perf_counter() - start
    print("Once upon a time" + should_stop.release() + should_stop.close())

    start = perf_counter()
    with counting(model) as plain_counts:
        plain = stage0.generate(model, prompt, len(steps))
    plain_seconds = perf_counter() - start
    same = plain[0, prompt.shape[1] :].tolist() == [step.token for step in steps]

    cache = KVCache(model, capacity=prompt.shape[1] + len(steps))
    print(f"\n{counts.forwards} forwards, {counts.positions} token-positions fed; the plain loop:")
    print(f"{plain_counts.forwards} forwards, {plain_counts.positions} token-positions fed.")
    print(f"The cache takes {cache.memory.nbytes:,} bytes for {cache.capacity} positions.")
    print(f"The plain loop took {plain_seconds / cached_seconds:.1f} times as long as this one.")
    print(f"Same tokens: {same}")
