"""A model by its name: a folder here, or else a model of the Hub, fetched once into its cache."""

import json
import re
from pathlib import Path

from support.checkpoint import load_config
from support.tokenizer import TOKENIZER_FILES

GPT2 = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")  # the published ones
FILES = [
    "config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json",
    "vocab.json", "merges.txt", "model.safetensors", "model.safetensors.index.json",
    "model-*.safetensors",
]  # fmt: skip


def folder_of(name: str) -> Path:
    """The folder called `name`; if there is none, that of the Hub's model of this id.

    An id is OWNER/MODEL, or MODEL alone for old ones, with @REVISION if it isn't the newest state.
    """
    is_id = re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?(@[\w./-]+)?", name)
    return Path(name) if Path(name).is_dir() or not is_id else download(name)


def download(name: str) -> Path:
    """Fetch a model of the Hub, and return its folder; what is in the cache is not fetched again.

    Raises ValueError, saying what to do, if it can't be fetched, or isn't a GPT-2 in safetensors:
    that is known before any weight is fetched.
    """
    try:
        from huggingface_hub import hf_hub_download, snapshot_download
    except ImportError:
        raise ValueError(
            f"{name} is not a folder here, and fetching it from the Hub needs huggingface_hub: "
            'run `pip install -e ".[gpt2]"`'
        ) from None
    model, _, revision = name.partition("@")
    model = f"openai-community/{model}" if model in GPT2 else model
    try:
        config = Path(hf_hub_download(model, "config.json", revision=revision or None))
    except Exception as error:  # of the network, the server or the disk; each has its classes
        raise ValueError(_sentence(name, "config.json", error)) from None
    folder = config.parent  # named by the commit, so all further files are of the same one
    try:
        load_config(folder)
    except ValueError as error:
        raise ValueError(str(error).replace(str(folder), name)) from None
    try:
        snapshot_download(model, revision=folder.name, allow_patterns=FILES)
    except Exception as error:
        raise ValueError(_sentence(name, "a file", error)) from None
    for file in _lacking(folder):  # the cache may hold a part of it, and a shard any name
        try:
            hf_hub_download(model, file, revision=folder.name)
        except Exception as error:
            raise ValueError(_sentence(name, file, error)) from None
    return folder


def _lacking(folder: Path) -> list[str]:
    """The files without which the folder is of no use, and which aren't there."""
    wanted = ["model.safetensors"]
    index = folder / "model.safetensors.index.json"
    if index.is_file() and not (folder / "model.safetensors").is_file():
        wanted = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    if not all((folder / name).is_file() for name in TOKENIZER_FILES):
        wanted.append("tokenizer.json")
    return [name for name in wanted if not (folder / name).is_file()]


def _sentence(name: str, file: str, error: Exception) -> str:
    """What an error of huggingface_hub means, and what to do."""
    from huggingface_hub import errors

    here = f"{name} is not a folder here"
    if isinstance(error, errors.GatedRepoError):
        return f"{name} is gated: accept its terms on its page, then run `hf auth login`"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{here}, and the Hub has no such model: check the name, or log in if it is private"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{name}: the Hub has this model, but no such revision"
    if isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
        return (
            f"{here} nor whole in the cache, and the Hub can't be reached: put its files into a "
            "folder and give that, or set HF_HOME to a cache that has them"
        )
    if isinstance(error, errors.EntryNotFoundError) and file == "model.safetensors":
        return (
            f"{name} has no weights in safetensors: convert them with `python -c "
            '"from transformers import AutoTokenizer as T, GPT2LMHeadModel as M; '
            f"[each.from_pretrained('{name}').save_pretrained('FOLDER') for each in (T, M)]\"` "
            "and give FOLDER instead"
        )
    if isinstance(error, errors.EntryNotFoundError):
        return f"{name} has no {file}: it is not a model that this can read"
    reason = " ".join(str(error).split()).split(". ")[0]
    return f"{file} of {name} could not be downloaded ({reason}): try again"
