"""Stage 3: a stop check after each token, and a loop that hands out its steps.

The model says when a text is at its end, with the end-of-text token; a caller may know other ends,
such as a stop string. So after each token the loop asks `should_stop`. And it becomes an iterator:
the caller sees each token as it is made, and cancels by not asking for the next one.

Costs: nothing. Saves: every token after the end. Stays equal: the tokens up to there.
"""

import codecs
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import tiktoken
import torch

from model import GPT, require_ids
from stages.stage2_sampling import Choose, Sampler
from support.checkpoint import TINY, load
from support.tokenizer import token_bytes

ShouldStop = Callable[[int], str | None]  # token -> why the text ends here, or None


@dataclass(frozen=True, eq=False)
class Step:
    """What one turn of the loop made."""

    token: int
    logits: torch.Tensor  # (V,), the row that the token was chosen from
    finish_reason: str | None  # eos, stop_string, max_new_tokens or context_full on the last step


@torch.no_grad()
def generate(
    model: GPT,
    ids: torch.Tensor,
    max_new_tokens: int,
    choose: Choose,
    should_stop: ShouldStop,
    context: str = "stop",
) -> Iterator[Step]:
    """Yield a step for each new token of one sequence, ids (1, T), until a reason to finish.

    context="stop" ends with `context_full` when prompt and new tokens fill `block_size`;
    context="crop" goes on with the newest `block_size` tokens, as in nanoGPT.
    """
    limit, limit_reason = token_budget(ids, max_new_tokens, model.config.block_size, context)
    for count in range(1, limit + 1):
        visible = ids[:, -model.config.block_size :]
        hidden = model.hidden(visible)  # forward pass: (1, T, C)
        logits = model.head(hidden[:, -1])  # logits of the last position: (1, V)
        token = choose(logits)  # choose: (1, 1)
        ids = torch.cat((ids, token), dim=1)  # append: (1, T + 1)
        reason = should_stop(int(token)) or (limit_reason if count == limit else None)
        yield Step(int(token), logits[0], reason)
        if reason:  # stop check
            return


def token_budget(
    ids: torch.Tensor, max_new_tokens: int, block_size: int, context: str
) -> tuple[int, str]:
    """How many tokens may be made after ids (1, T), and the reason to give at the last of them.

    With context="stop" the last position of the context is still used: 13 tokens of prompt and a
    block_size of 16 leave room for 3. A prompt that fills the context leaves room for none.
    """
    require_ids(ids)
    rows, tokens = ids.shape
    if rows != 1:
        raise ValueError(f"ids hold {rows} sequences: this loop runs one, such as ids[:1]")
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens is {max_new_tokens}: it must be 0 or above")
    if context == "crop":
        return max_new_tokens, "max_new_tokens"
    if context != "stop":
        raise ValueError(f"context is {context!r}: it must be 'stop' or 'crop'")
    room = block_size - tokens
    if room < 0:
        raise ValueError(
            f"prompt has {tokens} tokens, the model reads {block_size}: "
            "shorten it or pass context='crop'"
        )
    return (max_new_tokens, "max_new_tokens") if max_new_tokens <= room else (room, "context_full")


class StopCheck:
    """Says after each token whether the text ends there, and how much of it may be shown.

    Stop strings are found in the text, wherever the tokens' edges are. The first to be complete
    wins; of several complete at the same character, the longest. So the result is the same however
    the text is cut into tokens: "abXc" with stops "bX" and "abXc" ends as "a".

    Shown text can't be taken back. Held back until it is decided are an end of the text that may
    become a stop string, and bytes that are not yet a whole character.

    Make a new one for each run. `matched` is the id or the string that ended it.
    """

    def __init__(
        self,
        tokenizer: tiktoken.Encoding,
        eos_ids: int | Sequence[int] | torch.Tensor = (),
        stop_strings: str | Sequence[str] = (),
    ):
        stop_strings = (stop_strings,) if isinstance(stop_strings, str) else tuple(stop_strings)
        if "" in stop_strings:
            raise ValueError(
                "a stop string is empty: it would end every text at once, leave it out"
            )
        self.tokenizer = tokenizer
        self.eos_ids = set(torch.as_tensor(eos_ids).reshape(-1).tolist())
        self.stop_strings = stop_strings
        self.text = ""  # all that the tokens spell, up to a stop string
        self.released = 0  # characters of it that the caller has
        self.matched: int | str | None = None
        self.utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def __call__(self, token: int) -> str | None:
        """Take the next token; the reason why the text ends, "eos" or "stop_string", or None."""
        if token in self.eos_ids:
            self.matched = token
            return "eos"
        known = len(self.text)
        self.text += self.utf8.decode(token_bytes(self.tokenizer, token))
        return self._find_stop_string(known)

    def _find_stop_string(self, known: int) -> str | None:
        """Look for a stop string that ends beyond the `known` characters searched before."""
        found = []
        for stop in self.stop_strings:
            start = self.text.find(stop, max(0, known - len(stop) + 1))
            if start >= 0:
                found.append((start + len(stop), start, stop))
        if not found:
            return None
        _, start, self.matched = min(found)
        self.text = self.text[:start]
        return "stop_string"

    def held(self) -> str:
        """The longest end of the text that is the beginning of a stop string."""
        if self.matched is None:
            longest = max(map(len, self.stop_strings), default=0)
            for start in range(max(0, len(self.text) - longest + 1), len(self.text)):
                if any(stop.startswith(self.text[start:]) for stop in self.stop_strings):
                    return self.text[start:]
        return ""

    def release(self) -> str:
        """The text that has become safe to show since the last call."""
        return self._release_up_to(len(self.text) - len(self.held()))

    def close(self) -> str:
        """The run is over: the rest of the text; a character cut in two becomes U+FFFD."""
        if not isinstance(self.matched, str):
            self.text += self.utf8.decode(b"", final=True)
        return self._release_up_to(len(self.text))

    def _release_up_to(self, end: int) -> str:
        piece = self.text[self.released : end]
        self.released = end
        return piece


if __name__ == "__main__":
    torch.set_num_threads(1)  # the fastest for a model this small
    model, tokenizer = load(TINY)
    prompt = torch.tensor([tokenizer.encode("Once upon a time")])
    for stops in ((), (".",)):
        should_stop = StopCheck(tokenizer, tokenizer.eot_token, stops)
        print("Once upon a time", end="")
        for step in generate(model, prompt, 200, Sampler(0.8, seed=1), should_stop):
            print(should_stop.release(), end="", flush=True)
            reason = step.finish_reason
        print(should_stop.close())
        print(f"\nfinish reason: {reason}, matched {should_stop.matched!r}\n")
