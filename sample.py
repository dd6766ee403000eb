"""Text from a model, at the shell.

    python sample.py "Once upon a time"
    python sample.py "Once upon a time" --stage 0            the plain loop, and what it costs
    python sample.py --num-samples 3 --temperature 1.2       three texts, from nothing
    echo "Once upon a time" | python sample.py - --stop "."  one sentence
    python sample.py --requests FILE --slots 8               many texts at a time

The text goes to stdout as it is made, everything else to stderr. The loops are in generate.py and
stages/; `new_tokens` below is where this file calls them.
"""

import argparse
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from support.atomic import write_whole
from support.shell import Parser, flags_for, reason, speak_utf8

if TYPE_CHECKING:
    import torch

    from model import GPT
    from stages.stage2_sampling import Sampler
    from stages.stage3_stopping import StopCheck
    from tracing.record import Record


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="sample.py", description="Write text with a language model.")
    add = parser.add_argument
    add("prompt", nargs="?", help="text to go on with; - reads it from stdin; default: none, then "
        "the model begins by itself, after its end-of-text token")  # fmt: skip
    add("--prompt-file", type=Path, metavar="FILE", help="read the prompt from a UTF-8 file")
    add("--special-tokens", action="store_true",
        help="read <|endoftext|> in the prompt as that token; default: as plain text")  # fmt: skip
    add("--model", metavar="NAME", help="a GPT-2 folder, as train_tiny.py and transformers write "
        "it, or a model of the Hub, such as gpt2 or someone/their-gpt2@REVISION, which is fetched "
        "once; default: the embedded model, checkpoints/tiny")  # fmt: skip
    add("--stage", type=int, choices=range(5), default=4, help="which loop: 0 plain, 1 last "
        "logits, 2 sampling, 3 stopping, 4 KV cache (default); 0 and 1 are greedy")  # fmt: skip
    add("--max-new-tokens", type=int, default=256, metavar="N", help="0 or more; default 256")
    add("--temperature", type=float, metavar="T",
        help="0 is greedy, below 1 favours likely tokens, above 1 evens them out; "
        "default 0.8")  # fmt: skip
    add("--top-k", type=int, metavar="K", help="keep the K likeliest tokens; 0 is off, the default")
    add("--top-p", type=float, metavar="P", help="keep the likeliest tokens that together have "
        "probability P, above 0 to 1; 1 is off, the default")  # fmt: skip
    add("--min-p", type=float, metavar="P", help="keep tokens with at least P times the "
        "probability of the likeliest, 0 to 1; 0 is off, the default")  # fmt: skip
    add("--greedy", action="store_true", help="always the likeliest token: --temperature 0")
    add("--seed", type=int, help="0 or more; sample i uses seed + i; default: a random one")
    add("--num-samples", type=int, default=1, metavar="N", help="1 or more; default 1")
    add("--stop", action="append", default=[], metavar="TEXT",
        help="end before this text; may be given several times")  # fmt: skip
    add("--context", choices=("stop", "crop"), default="stop", help="at the context's edge: stop "
        "(default), or crop to the newest tokens and go on, slowly")  # fmt: skip
    add("--json", action="store_true", help="one JSON object a sample instead of text")
    add("--trace", action="store_true", help="print what each turn of the loop did, then the text")
    add("--step", action="store_true", help="as --trace, waiting for Enter after each turn; q ends")
    add("--plot", type=Path, metavar="FILE.png", help="draw the candidates of each turn")
    add("--html", type=Path, metavar="FILE.html", help="write a page to step through the turns")
    add("--requests", type=Path, metavar="FILE", help="answer many requests together: one JSON "
        'object a line, such as {"prompt": "Once"}; - reads stdin; see serving/')  # fmt: skip
    add("--slots", type=int, metavar="N", help="how many requests run at once; default 8")
    add("--device", default="cpu", help="cpu (default), cuda, mps, or auto: the best there is")
    add("--dtype", default="float32", choices=("float64", "float32", "bfloat16", "float16"),
        help="of weights and cache; default float32")  # fmt: skip
    args = parser.parse_args(arguments)

    if args.prompt is not None and args.prompt_file is not None:
        parser.error("a prompt and --prompt-file: give one of them")
    if args.max_new_tokens < 0:
        parser.error(f"--max-new-tokens is {args.max_new_tokens}: it must be 0 or more")
    if args.num_samples < 1:
        parser.error(f"--num-samples is {args.num_samples}: it must be 1 or more")
    if args.greedy and args.temperature not in (None, 0):
        parser.error(f"--greedy and --temperature {args.temperature}: give one of them")
    samples = args.temperature or args.top_k or args.top_p not in (None, 1) or args.min_p
    if args.stage < 2 and samples:
        parser.error(f"stage {args.stage} always takes the likeliest token: leave the sampling "
                     "options out, or use --stage 2 or later")  # fmt: skip
    if args.step and args.prompt == "-":
        parser.error("--step reads Enter from stdin: give the prompt as an argument or a file")
    for option, file in (("--plot", args.plot), ("--html", args.html)):
        if file is not None and args.num_samples > 1:
            parser.error(f"{option} shows one text: leave --num-samples out")
        if file is not None and not file.absolute().parent.is_dir():
            parser.error(f"{option}: there is no folder {file.parent}, make it first")
        if file is not None and file.is_dir():
            parser.error(f"{option}: {file} is a folder, name a file in it")
    if args.requests is None and args.slots is not None:
        parser.error("--slots is for --requests FILE: give both of them")
    if args.requests is not None:
        single = args.prompt is not None or args.prompt_file is not None or args.num_samples > 1
        single |= args.trace or args.step or args.plot is not None or args.html is not None
        if single or args.stage != 4 or args.context != "stop":
            parser.error("--requests has its own prompts and its own loop: leave prompt, "
                         "--prompt-file, --num-samples, --stage, --context, --trace, --step, "
                         "--plot and --html out")  # fmt: skip
        if args.slots is not None and args.slots < 1:
            parser.error(f"--slots is {args.slots}: it must be 1 or more")
    if args.seed is None:
        args.seed = random.SystemRandom().randrange(1_000_000)
    return args


def read_prompt(args: argparse.Namespace) -> str:
    """The prompt of the command line, a file or stdin; the last newline of those two is dropped."""
    if args.prompt_file is None and args.prompt != "-":
        return from_shell(args.prompt or "")
    source = args.prompt_file or "stdin"
    try:
        data = args.prompt_file.read_bytes() if args.prompt_file else sys.stdin.buffer.read()
        return data.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8 ({error}): convert it first") from None
    except OSError as error:
        raise ValueError(f"{source} can't be read: {error.strerror}") from None


def from_shell(text: str) -> str:
    """An argument as UTF-8, whatever the locale; bytes that are no UTF-8 become U+FFFD."""
    return os.fsencode(text).decode("utf-8", errors="replace")


def device_named(name: str) -> str:
    """The device to use. ValueError if this machine or PyTorch doesn't have it."""
    import torch

    here = ["cpu"]
    here += ["cuda"] if torch.cuda.is_available() else []
    here += ["mps"] if torch.backends.mps.is_available() else []
    if name == "auto":
        return here[-1]
    if name not in here:
        raise ValueError(f"--device is {name}: PyTorch finds only {', '.join(here)} here")
    return name


def loop_of(stage: int) -> Callable[..., Any]:
    """The `generate` of a stage."""
    import generate as stage0
    from stages import stage1_last_logits as stage1
    from stages import stage2_sampling as stage2
    from stages import stage3_stopping as stage3
    from stages import stage4_kv_cache as stage4

    return (stage0, stage1, stage2, stage3, stage4)[stage].generate


def new_tokens(
    args: argparse.Namespace,
    model: "GPT",
    ids: "torch.Tensor",
    choose: "Sampler",
    should_stop: "StopCheck",
) -> Iterator[tuple[int, str | None]]:
    """Each new token and, with the last, the finish reason, from the loop of args.stage.

    Stages 0 to 2 know no end: they make all tokens first, and the same rules cut them afterwards.
    """
    from stages.stage3_stopping import token_budget

    generate = loop_of(args.stage)
    if args.stage >= 3:
        for step in generate(model, ids, args.max_new_tokens, choose, should_stop, args.context):
            yield step.token, step.finish_reason
        return
    limit, limit_reason = token_budget(
        ids, args.max_new_tokens, model.config.block_size, args.context
    )
    after = generate(model, ids, limit, choose) if args.stage == 2 else generate(model, ids, limit)
    for count, token in enumerate(after[0, ids.shape[1] :].tolist(), start=1):
        reason = should_stop(token) or (limit_reason if count == limit else None)
        yield token, reason
        if reason:
            return


def watched(
    args: argparse.Namespace,
    model: "GPT",
    turns: Iterator[tuple[int, str | None]],
    choose: "Sampler",
    should_stop: "StopCheck",
    records: list["Record"],
) -> Iterator[tuple[int, str | None]]:
    """The same turns; each is added to `records`, and shown if args say so."""
    from tracing.record import trace
    from tracing.table import TraceTable

    table = TraceTable(sys.stderr) if args.trace or args.step else None
    for record in trace(model, should_stop.tokenizer, turns, choose, should_stop):
        records.append(record)
        if table:
            table.add(record)
        yield record.chosen.id, record.finish_reason
        if args.step and not record.finish_reason:
            print("Enter: next turn, q: end ", end="", file=sys.stderr, flush=True)
            if sys.stdin.readline()[:1] in ("q", ""):  # "" is the end of stdin
                return


def write_sample(
    args: argparse.Namespace,
    model: "GPT",
    prompt: str,
    ids: "torch.Tensor",
    choose: "Sampler",
    should_stop: "StopCheck",
    seed: int,
) -> None:
    """Write one text as it is made, then a line to stderr; Ctrl-C keeps the text so far."""
    from stages.stage3_stopping import token_budget

    late = args.trace or args.step  # then the table comes first, and the text whole after it

    def show(text: str) -> None:
        if not args.json and not late:
            print(text, end="", flush=True)

    with flags_for(("max_new_tokens", "context")):
        limit, finish_reason = token_budget(
            ids, args.max_new_tokens, model.config.block_size, args.context
        )
    tokens: list[int] = []
    records: list[Record] = []
    turns = new_tokens(args, model, ids, choose, should_stop)
    if late or args.plot or args.html:
        turns = watched(args, model, turns, choose, should_stop, records)
    interrupted = False
    start = perf_counter()
    show(prompt)
    try:
        for token, reason in turns:
            tokens.append(token)
            finish_reason = reason or "cancelled"
            show(should_stop.release())
    except KeyboardInterrupt:
        interrupted, finish_reason = True, "cancelled"
    show(should_stop.close() + "\n")
    seconds = perf_counter() - start

    in_vain = limit - len(tokens) if args.stage < 3 and finish_reason != "cancelled" else 0
    report = {
        "prompt": prompt,
        "text": should_stop.text,
        "ids": tokens,
        "finish_reason": finish_reason,
        "matched": should_stop.matched,
        "prompt_tokens": ids.shape[1],
        "new_tokens": len(tokens),
        "tokens_in_vain": in_vain,
        "seconds": round(seconds, 4),
        "stage": args.stage,
        "seed": seed,
    }
    if args.json:
        if records:
            report["trace"] = [asdict(record) for record in records]
        print(json.dumps(report, ensure_ascii=False), flush=True)
    elif late:
        print(f"\n{prompt}{should_stop.text}", flush=True)
    if args.plot:
        from tracing.plot import plot_trace

        write_whole(args.plot, plot_trace(records))
    if args.html:
        from tracing.page import trace_page

        write_whole(args.html, trace_page(prompt, records).encode())
    wasted = f", {in_vain} more computed in vain" if in_vain else ""
    print(
        f"[{finish_reason}] {ids.shape[1]} prompt tokens, {len(tokens)} new{wasted}; "
        f"{seconds:.2f} s, {(len(tokens) + in_vain) / seconds:.0f} tokens/s; "
        f"stage {args.stage}, seed {seed}",
        file=sys.stderr,
    )
    if interrupted:
        raise KeyboardInterrupt


def run(args: argparse.Namespace) -> None:
    """Load the model and write all samples. ValueError, with what to do, for bad input."""
    # An exception can get lost in the C code of an import, so Ctrl-C ends the process at once here.
    raise_interrupt = signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    import torch

    from stages.stage2_sampling import Sampler
    from stages.stage3_stopping import StopCheck
    from support.checkpoint import TINY, end_of_text_ids, load
    from support.download import folder_of
    from support.layout import is_small, lay_out_for_decoding

    loop_of(args.stage)  # imports the stages
    signal.signal(signal.SIGINT, raise_interrupt)

    settings = {name: getattr(args, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    settings = {name: value for name, value in settings.items() if value is not None}
    settings.setdefault("temperature", 0 if args.greedy or args.stage < 2 else 0.8)
    with flags_for((*settings, "seed")):
        samplers = [Sampler(**settings, seed=args.seed + i) for i in range(args.num_samples)]
    stop_strings = [from_shell(text) for text in args.stop]
    prompt = read_prompt(args)

    folder = TINY if args.model is None else folder_of(args.model)
    device = device_named(args.device)
    model, tokenizer = load(folder, dtype=getattr(torch, args.dtype), device=device)
    if device == "cpu":
        if is_small(model):
            torch.set_num_threads(1)  # its steps are too short to share
        lay_out_for_decoding(model)
    eos_ids = end_of_text_ids(folder)
    special: Literal["all"] | set[str] = "all" if args.special_tokens else set()

    def encode(text: str) -> list[int]:
        ids = tokenizer.encode(text, allowed_special=special, disallowed_special=())
        if not ids and not eos_ids:
            raise ValueError(
                f"the prompt is empty, and {folder} names no end-of-text token instead"
            )
        return ids or eos_ids[:1]

    if args.requests is not None:
        from serving.lines import serve

        settings |= {"max_new_tokens": args.max_new_tokens, "seed": args.seed, "stop": stop_strings}
        serve(args.requests, model, tokenizer, encode, eos_ids, settings, args.slots or 8)
        return
    prompt_ids = torch.tensor([encode(prompt)], device=device)

    for i, choose in enumerate(samplers):
        if i and not args.json:
            print("\n---\n")
        should_stop = StopCheck(tokenizer, eos_ids, stop_strings)
        write_sample(args, model, prompt, prompt_ids, choose, should_stop, args.seed + i)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with the shell's arguments; returns the exit code.

    PyTorch is imported inside `run`, once the arguments are known to be good: so --help, a typo and
    an early Ctrl-C are answered at once.
    """
    args = parse_arguments(arguments)
    speak_utf8()
    try:
        run(args)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, such as `head -1`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, OSError) as error:
        print(f"sample.py: {reason(error)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
