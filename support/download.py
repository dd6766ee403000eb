"""GPT-2's published weights, fetched once into the cache of huggingface_hub."""

from pathlib import Path

OWNER = "openai-community"
MODELS = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
FILES = ("config.json", "generation_config.json", "vocab.json", "merges.txt", "model.safetensors")


def download(name: str) -> Path:
    """The folder of one of MODELS; what is in the cache already is not fetched again.

    Raises ValueError, saying what to do, if a file is not in the cache and can't be fetched.
    """
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise ValueError(
            f"--model {name} downloads with huggingface_hub, which is not installed: "
            'run `pip install -e ".[gpt2]"`'
        ) from None
    for file in FILES:
        try:
            path = hf_hub_download(f"{OWNER}/{name}", file)
        except Exception as error:  # of the network, the server or the disk; each has its classes
            reason = " ".join(str(error).split()).split(". ")[0]
            raise ValueError(
                f"{file} of {OWNER}/{name} could not be downloaded ({reason}): try again, or, "
                f"without a network, put {', '.join(FILES)} into a folder and give it as "
                "--model ./FOLDER, or set HF_HUB_OFFLINE=1 and HF_HOME to a cache that has them"
            ) from None
    return Path(path).parent
