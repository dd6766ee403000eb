"""Stage 0: the plain loop. This is how a language model writes text; all else is refinement.

    forward pass -> logits of the last position -> choose a token -> append -> repeat

The model reads all tokens so far and scores every token of its vocabulary as the next one. The
loop takes the best, appends it, and asks again, with a text that is now one token longer.

Cost: each new token reads the whole text once more, and all positions but the last are scored in
vain. The loop doesn't know when the text is at its end, either. The stages change that, one thing
at a time, and the tokens stay the same.
"""

import torch

from model import GPT, require_ids
from support.checkpoint import TINY, load
from support.counting import counting
from support.tokenizer import decode


@torch.no_grad()
def generate(model: GPT, ids: torch.Tensor, max_new_tokens: int) -> torch.Tensor:
    """Append the likeliest token, max_new_tokens times: ids (B, T) -> (B, T + max_new_tokens).

    Beyond `block_size` tokens the model sees only the newest `block_size`, as in nanoGPT.
    """
    require_ids(ids)
    for _ in range(max_new_tokens):
        context = ids[:, -model.config.block_size :]
        logits = model(context)  # forward pass: (B, T, V)
        last = logits[:, -1]  # logits of the last position: (B, V)
        token = last.argmax(dim=-1, keepdim=True)  # choose: (B, 1)
        ids = torch.cat((ids, token), dim=1)  # append: (B, T + 1)
    return ids


if __name__ == "__main__":
    torch.set_num_threads(1)  # the fastest for a model this small
    model, tokenizer = load(TINY)
    prompt = torch.tensor([tokenizer.encode("Once upon a time")])
    with counting(model) as counts:
        ids = generate(model, prompt, max_new_tokens=150)
    print(decode(tokenizer, ids[0].tolist()))
    print(f"\n{counts.forwards} forwards fed {counts.positions:,} token-positions to the model.")
    print(f"{counts.head_rows:,} rows of logits were computed, {counts.forwards} were used.")
