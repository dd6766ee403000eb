"""How good are a model's stories? Writes some, and holds each against the grammar of the corpus.

    python benchmarks/story_quality.py [--model FOLDER] [--count N]

At temperature 0.8 and seeds from 1 on, for stories from nothing and from "Once upon a time", it
prints how many end by themselves inside the context, how many are whole (grammar, name, object and
place), what fails in the others, and how many are not in the training set.
"""

import json
from collections import Counter
from pathlib import Path

import torch

from stages.stage2_sampling import Sampler
from stages.stage3_stopping import StopCheck
from stages.stage4_kv_cache import generate
from support import corpus
from support.checkpoint import TINY, load
from support.shell import Parser


def measure(folder: Path, prompt: str, count: int) -> Counter[str]:
    """Counts over `count` stories that go on with `prompt`: ended, whole, new, and each fault."""
    model, tokenizer = load(folder)
    settings = json.loads((folder / "training.json").read_text(encoding="utf-8"))["settings"]
    learned = set(corpus.stories(settings["stories"], settings["seed"]))
    ids = torch.tensor([tokenizer.encode(prompt) or [tokenizer.eot_token]])
    counts = Counter(ended=0, whole=0, new=0)
    for seed in range(1, count + 1):
        should_stop = StopCheck(tokenizer, tokenizer.eot_token)
        room = model.config.block_size
        steps = list(generate(model, ids, room, Sampler(0.8, seed=seed), should_stop))
        should_stop.close()
        story = prompt + should_stop.text
        faults = corpus.check(story)
        counts.update(faults)
        counts["ended"] += steps[-1].finish_reason == "eos"
        counts["whole"] += not faults
        counts["new"] += story not in learned
    return counts


def main() -> None:
    parser = Parser(description="How good are a model's stories?")
    parser.add_argument("--model", type=Path, default=TINY, help="default: the embedded model")
    parser.add_argument("--count", type=int, default=100, help="stories a prompt, default 100")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the fastest for a model this small
    for prompt in ("", "Once upon a time"):
        counts = measure(args.model, prompt, args.count)
        faults = ", ".join(f"{counts[kind]} {kind}" for kind in ("grammar", *corpus.REPEATED))
        print(f"{prompt or 'from nothing'}: of {args.count} stories, {counts['ended']} end by")
        print(f"    themselves, {counts['whole']} are whole (faults: {faults}), and")
        print(f"    {counts['new']} are not in the training set")


if __name__ == "__main__":
    main()
