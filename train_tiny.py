"""Train a tiny GPT on small stories: about three minutes on two CPU cores.

    python train_tiny.py                          stories from the project's own grammar
    python train_tiny.py --data my.txt            any UTF-8 text, documents split at blank lines
    python train_tiny.py --data composed          stories with more to choose, of corpus/
    python train_tiny.py --data python-docs       the help topics that come with Python
    python train_tiny.py --resume                 go on after Ctrl-C

Each step asks the model to predict every next token of a batch of text and moves the weights a
little towards a better answer. What is written is a folder that `sample.py --model FOLDER` opens.

Ctrl-C saves. `--resume` then ends with the same weights as a run that was never interrupted, since
all that a step depends on is in the folder: weights, optimizer, and the tokens, from which seed and
step pick a batch.
"""

import argparse
import json
import math
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from model import GPT, GPTConfig
from stages.stage2_sampling import Sampler
from stages.stage3_stopping import StopCheck
from stages.stage4_kv_cache import generate
from support import corpus
from support.atomic import find, require_writable
from support.checkpoint import load, pack_optimizer, save, unpack_optimizer
from support.dataset import batch, make_tokens, read_documents, window_starts
from support.plots import plot_loss
from support.shell import Parser, flags_for, reason, speak_utf8
from support.tokenizer import TOKENIZER_FILES, build_tokenizer, train_bpe

console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="train_tiny.py",
        description="Train a tiny GPT on a CPU.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--data",
        default="stories",
        help="stories, composed (stories with more to choose), python-docs, or a UTF-8 text file",
    )
    add(
        "--stories",
        type=int,
        default=20_000,
        help="how many stories to write",
    )
    add("--out", type=Path, default=Path("out/tiny"), help="folder to write")
    add("--resume", action="store_true", help="go on with the run in --out, with its settings")
    add("--steps", type=int, default=2400, help="batches to learn from")
    add("--seed", type=int, default=0, help="of the stories, the weights and the batches")
    add("--batch-size", type=int, default=4, help="windows of text in a batch")
    add("--block-size", type=int, default=256, help="tokens in a window: the model's context")
    add("--vocab-size", type=int, default=1024, help="tokens in the vocabulary, at most")
    add("--n-layer", type=int, default=2, help="blocks")
    add("--n-head", type=int, default=4, help="attention heads in a block")
    add("--n-embd", type=int, default=176, help="channels")
    add("--learning-rate", type=float, default=3e-3, help="at its highest, after the warm-up")
    add("--threads", type=int, default=2, help="CPU threads")
    args = parser.parse_args(arguments)
    limits = {
        "--stories": (args.stories, 1, math.inf), "--steps": (args.steps, 1, math.inf),
        "--batch-size": (args.batch_size, 1, math.inf), "--threads": (args.threads, 1, 1024),
        "--seed": (args.seed, 0, 2**63 - 1), "--vocab-size": (args.vocab_size, 257, math.inf),
    }  # fmt: skip
    for flag, (value, lowest, highest) in limits.items():
        if not lowest <= value <= highest:
            upper = "" if highest == math.inf else f" and at most {highest}"
            parser.error(f"{flag} is {value}: it must be at least {lowest}{upper}")
    if not 0 < args.learning_rate < math.inf:
        parser.error(f"--learning-rate is {args.learning_rate}: it must be above 0, and finite")
    try:
        with flags_for(vars(args)):
            config_of(args, args.vocab_size)
        if not args.resume:
            require_writable(args.out)
    except ValueError as error:
        parser.error(str(error))
    return args


def config_of(args: argparse.Namespace, vocab_size: int) -> GPTConfig:
    """The model's shape, by the settings. ValueError for one that can't be."""
    shape = {name: getattr(args, name) for name in ("block_size", "n_layer", "n_head", "n_embd")}
    return GPTConfig(vocab_size=vocab_size, **shape)


def begin(args: argparse.Namespace) -> None:
    """Write step 0 of a new run to args.out: tokenizer, tokens, fresh weights.

    What can be known to fail fails here, before the training: a bad corpus, a full disk.
    """
    documents = read_documents(args.data, args.stories, args.seed)
    files = train_bpe(documents, args.vocab_size)
    tokenizer = build_tokenizer(files)
    tokens = make_tokens(documents, tokenizer)
    needed = 10 * (args.block_size + 2)  # a tenth is for validation, one window of it at least
    if len(tokens) < needed:
        raise ValueError(
            f"the corpus has {len(tokens)} tokens, with --block-size {args.block_size} it needs "
            f"{needed}: give more text or a smaller --block-size"
        )
    torch.manual_seed(args.seed)
    model = GPT(config_of(args, tokenizer.n_vocab))
    files["tokens.bin"] = tokens.tobytes()
    settings = {name: value for name, value in vars(args).items() if name not in ("out", "resume")}
    state = {"settings": settings, "step": 0, "training": [], "validation": []}
    write(args.out, model, optimizer_of(model), state, files)


def optimizer_of(model: GPT) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=0.1, fused=True)


def train(args: argparse.Namespace) -> bool:
    """Go on from what is in args.out to the last step, or to Ctrl-C; returns whether it ended."""
    folder = args.out
    file = find(folder, "training.json")
    if not file.is_file():
        raise ValueError(f"{folder} has no run to go on with: train without --resume first")
    state = json.loads(file.read_text(encoding="utf-8"))
    args = argparse.Namespace(**state["settings"])
    if "loss" in state:
        raise ValueError(f"the run in {folder} is complete: train another with another --out")
    torch.set_num_threads(args.threads)

    model, tokenizer = load(folder)
    model.train()
    optimizer = optimizer_of(model)
    unpack_optimizer(optimizer, find(folder, "optimizer.safetensors"))
    files = {name: find(folder, name).read_bytes() for name in TOKENIZER_FILES}

    tokens = np.memmap(find(folder, "tokens.bin"), np.uint16, mode="r")
    learn, unseen = np.split(tokens, [len(tokens) * 9 // 10])
    learn_starts = window_starts(learn, tokenizer.eot_token, args.block_size)
    # Half the windows begin after the end-of-text token, as a prompt at the shell does.
    learn_starts = np.concatenate([learn_starts, learn_starts + 1])
    unseen_starts = window_starts(unseen, tokenizer.eot_token, args.block_size)
    documents = np.count_nonzero(tokens == tokenizer.eot_token) - 1
    size = sum(parameter.numel() for parameter in model.parameters())
    console.print(f"{documents:,} documents, {len(tokens):,} tokens; {size:,} parameters")
    floor = None
    if args.data == "stories":
        floor = corpus.entropy() * documents / len(tokens)  # nats per token

    with CtrlC() as ctrl_c, progress_bar() as bar:
        task = bar.add_task("", total=args.steps, completed=state["step"], loss=0, speed=0)
        began, first = time.perf_counter(), state["step"]
        while state["step"] < args.steps and not ctrl_c.pressed:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(state["step"], args.steps, args.learning_rate)
            seed = [args.seed, state["step"]]
            inputs, targets = batch(learn, learn_starts, args.batch_size, args.block_size, seed)
            loss = loss_of(model, inputs, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            state["step"] += 1

            state["training"].append(round(loss.item(), 4))
            read = (state["step"] - first) * inputs.numel()
            speed = read / (time.perf_counter() - began)
            bar.update(task, completed=state["step"], loss=loss.item(), speed=speed)
            if state["step"] % max(1, args.steps // 10) == 0:
                inputs, targets = batch(unseen, unseen_starts, 64, args.block_size, seed=[0])
                validation = validation_loss(model, inputs, targets, tokenizer.eot_token)
                state["validation"].append((state["step"], validation))
                write(folder, model, optimizer, state, files)
    if state["step"] < args.steps:
        write(folder, model, optimizer, state, files)
        return False

    inputs, targets = batch(unseen, unseen_starts, 512, args.block_size, seed=[0])
    state["loss"] = validation_loss(model, inputs, targets, tokenizer.eot_token)
    files["loss.png"] = plot_loss(state["training"], state["validation"], floor)
    write(folder, model, optimizer, state, files)
    for name in ("optimizer.safetensors", "tokens.bin"):  # only going on needs them
        (folder / name).unlink()
    console.print(f"validation loss: {state['loss']:.3f} nats per token")
    if floor is not None:
        console.print(f"entropy of the corpus: {floor:.3f}, which no model can beat")
    return True


def loss_of(model: GPT, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy in nats per token: how much the true next tokens surprise the model.

    A target of -100 isn't counted.
    """
    logits = model(inputs)  # (B, T, V)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def validation_loss(
    model: GPT, inputs: torch.Tensor, targets: torch.Tensor, end_of_text: int
) -> float:
    """Loss in nats per token on the first document of each window, end-of-text included.

    What follows in a window is left out, so that each document weighs as it does in the corpus and
    the loss can stand beside the corpus's entropy.
    """
    ends = (targets == end_of_text).int()
    targets = targets.masked_fill(ends.cumsum(1) > ends, -100)
    nats = 0.0
    for x, y in zip(inputs.split(16), targets.split(16), strict=True):
        nats += loss_of(model, x, y).item() * (y != -100).sum().item()
    return nats / (targets != -100).sum().item()


def learning_rate(step: int, steps: int, highest: float) -> float:
    """Linear warm-up over 3 % of the steps, then half a cosine down to 2 % of the highest."""
    warmup = max(1, round(0.03 * steps))
    if step < warmup:
        return highest * (step + 1) / warmup
    done = (step - warmup) / (steps - warmup)
    return highest * (0.02 + 0.98 * (1 + math.cos(math.pi * done)) / 2)


def write(
    folder: Path,
    model: GPT,
    optimizer: torch.optim.AdamW,
    state: dict[str, Any],
    files: dict[str, bytes],
) -> None:
    """Save everything that the next step depends on, in one atomic change of the folder."""
    packed = {"optimizer.safetensors": pack_optimizer(optimizer)}
    save(folder, model, {**files, **packed, "training.json": json.dumps(state).encode()})


class CtrlC:
    """While it is open, Ctrl-C only sets `pressed`, so that no step is left half done."""

    def __enter__(self) -> "CtrlC":
        self.pressed = False
        self.previous = signal.signal(signal.SIGINT, self.press)
        return self

    def press(self, *_: object) -> None:
        self.pressed = True

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self.previous)


def progress_bar() -> Progress:
    return Progress(
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TextColumn("{task.fields[speed]:,.0f} tokens/s"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
    )


def tell_stories(folder: Path, count: int) -> None:
    """Print texts that begin after an end-of-text token and end with one."""
    model, tokenizer = load(folder)
    torch.set_num_threads(1)  # the fastest for one token of a small model
    begin_of_text = torch.tensor([[tokenizer.eot_token]])
    for seed in range(count):
        should_stop = StopCheck(tokenizer, tokenizer.eot_token)
        for _ in generate(
            model, begin_of_text, model.config.block_size, Sampler(0.8, seed=seed), should_stop
        ):
            print(should_stop.release(), end="", flush=True)
        print(should_stop.close(), end="\n\n")


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_arguments(arguments)
    speak_utf8()
    try:
        if not args.resume:
            begin(args)
        ended = train(args)
        if ended:
            tell_stories(args.out, 3)
            console.print(f"Written to {args.out}: python sample.py --model {args.out}")
            return 0
        console.print(f"Saved. Go on with: python train_tiny.py --resume --out {args.out}")
        return 130
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError) as error:
        console.print(f"train_tiny.py: {reason(error)}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
