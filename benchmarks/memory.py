"""How much memory does sampling take? Weights should be in it once.

    python benchmarks/memory.py [--model FOLDER]

Prints the peak memory of `sample.py` on a model, by default the 124M shape with random weights,
beyond that of the interpreter with PyTorch imported, as a multiple of the size of its weights.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from speed import write_gpt2

from model import GPTConfig
from support.shell import Parser

REPO = Path(__file__).resolve().parent.parent
PEAK = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"  # in KiB
SAMPLE = "import sys, sample; sample.main([*sys.argv[1:], '--max-new-tokens', '50']);"


def peak(script: str, *arguments: str) -> int:
    """Peak resident memory of a Python process that runs the script, in bytes (Linux)."""
    command = [sys.executable, "-c", script + PEAK, *arguments]
    result = subprocess.run(command, cwd=REPO, capture_output=True, encoding="utf-8", check=True)
    return 1024 * int(result.stdout.split()[-1])


def main() -> None:
    parser = Parser(description="How much memory does sampling take?")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="default: the 124M shape")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.model
        if folder is None:
            folder = Path(scratch)
            write_gpt2(folder, GPTConfig())
        weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        idle = peak("import torch;")
        busy = peak(SAMPLE, "Once upon a time", "--model", str(folder))
    print(f"interpreter with PyTorch: {idle / 1e6:,.0f} MB; sampling: {busy / 1e6:,.0f} MB at most")
    print(
        f"weights: {weights / 1e6:,.0f} MB; sampling took {(busy - idle) / weights:.2f} times that"
    )


if __name__ == "__main__":
    main()
