"""Stage 1: logits of the last position only.

The loop chooses from one row of logits, the last. Stage 0 lets the head compute a row for every
position and drops all but one. Here the head runs on the last position alone.

Saves: all but one row per step, at V * C multiplications each, where the blocks together take about
12 * n_layer * C * C a position. That is a fifth of the embedded model's work, and nearly a third
of GPT-2's. Stays equal: the tokens.
"""

import torch

from model import GPT, require_ids
from support.checkpoint import TINY, load
from support.counting import counting
from support.tokenizer import decode


@torch.no_grad()
def generate(model: GPT, ids: torch.Tensor, max_new_tokens: int) -> torch.Tensor:
    """Append the likeliest token, max_new_tokens times: ids (B, T) -> (B, T + max_new_tokens)."""
    require_ids(ids)
    for _ in range(max_new_tokens):
        context = ids[:, -model.config.block_size :]
        hidden = model.hidden(context)  # forward pass: (B, T, C)
        logits = model.head(hidden[:, -1])  # logits of the last position: (B, V)
        token = logits.argmax(dim=-1, keepdim=True)  # choose: (B, 1)
        ids = torch.cat((ids, token), dim=1)  # append: (B, T + 1)
    return ids


if __name__ == "__main__":
    torch.set_num_threads(1)  # the fastest for a model this small
    model, tokenizer = load(TINY)
    prompt = torch.tensor([tokenizer.encode("Once upon a time")])
    with counting(model) as counts:
        ids = generate(model, prompt, max_new_tokens=150)
    print(decode(tokenizer, ids[0].tolist()))
    row = model.config.vocab_size * model.config.n_embd
    saved = counts.positions - counts.head_rows
    print(f"\n{counts.head_rows} rows of logits were computed; stage 0 computes {saved:,} more.")
    print(f"A row costs {row:,} multiplications in the head: {saved * row:,} saved.")
