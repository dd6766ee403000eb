"""A model's folder, in the layout of Hugging Face's GPT-2: load it, save it.

    config.json  generation_config.json  model.safetensors
    vocab.json   merges.txt              tokenizer_config.json

What is saved here opens in transformers and others, and what they saved opens here. Nothing is
unpickled: a safetensors file holds numbers and their names, no code.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tiktoken
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes

from model import GPT, GPTConfig
from support.atomic import find, whole_folder
from support.tokenizer import END_OF_TEXT, load_tokenizer

TINY = Path(__file__).resolve().parent.parent / "checkpoints" / "tiny"  # the embedded model

# Our field names beside those of config.json.
CONFIG_NAMES = {
    "block_size": "n_positions",
    "vocab_size": "vocab_size",
    "n_layer": "n_layer",
    "n_head": "n_head",
    "n_embd": "n_embd",
    "dropout": "resid_pdrop",
}

# What model.py does, in the terms of config.json. A folder that asks for anything else is refused.
IMPLEMENTED: dict[str, tuple[Any, ...]] = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "reorder_and_upcast_attn": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}


def load(
    folder: Path | str, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> tuple[GPT, tiktoken.Encoding]:
    """The model, in eval mode, and the tokenizer of a folder.

    Some folders pad the vocabulary to a round number: rows of the embedding for which there are no
    tokens. They are left out, so that no loop can choose them.

    Raises ValueError, saying what to do, for a folder that is missing, incomplete or broken, or
    whose model is not a GPT-2 or doesn't fit its tokenizer.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(
            f"{folder} is not a folder: give one that train_tiny.py or transformers wrote"
        )
    config = load_config(folder)
    tokenizer = load_tokenizer(folder, rows=config.vocab_size)
    if tokenizer.n_vocab > config.vocab_size:
        raise ValueError(
            f"{folder}: the tokenizer has {tokenizer.n_vocab} tokens, the model "
            f"{config.vocab_size}: they are not of the same training, copy both from one folder"
        )
    # On the meta device parameters have shapes but no memory: nothing is filled with random
    # numbers only to be replaced.
    with torch.device("meta"):
        stored = GPT(config)
        model = GPT(replace(config, vocab_size=tokenizer.n_vocab))
    weights = load_weights(folder)
    _check_names_and_shapes(folder, weights, stored.state_dict())
    weights["wte.weight"] = weights["wte.weight"][: tokenizer.n_vocab]
    model.load_state_dict(weights, assign=True)
    return model.to(device=device, dtype=dtype).eval(), tokenizer


def load_config(folder: Path) -> GPTConfig:
    """The GPTConfig that config.json describes. ValueError for what model.py doesn't implement."""
    config = _read_json(folder, "config.json")
    for name, values in IMPLEMENTED.items():
        if config.get(name, values[0]) not in values:
            raise ValueError(
                f"{folder}: config.json has {name} = {config[name]!r}, but model.py "
                f"implements only {values[0]!r}"
            )
    missing = [theirs for theirs in CONFIG_NAMES.values() if theirs not in config]
    if missing:
        raise ValueError(f"{folder}: config.json has no {', '.join(missing)}")
    if config.get("n_inner") not in (None, 4 * config["n_embd"]):
        raise ValueError(f"{folder}: n_inner is {config['n_inner']}, model.py has 4 * n_embd only")
    fields = {ours: config[theirs] for ours, theirs in CONFIG_NAMES.items()}
    for name, value in fields.items():
        if not isinstance(value, int) and name != "dropout":
            raise ValueError(f"{folder}: config.json has {CONFIG_NAMES[name]} = {value!r}")
    try:
        return GPTConfig(**fields)
    except ValueError as error:
        raise ValueError(f"{folder}: config.json: {error}") from None


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of model.safetensors under model.py's names, (name -> tensor).

    Large models come in several files, which model.safetensors.index.json lists. And files differ:
    some prefix every name, older ones hold the causal mask as `attn.bias`, and the head may be
    stored although it is the token embedding.
    """
    stored: dict[str, torch.Tensor] = {}
    for file in _weight_files(folder):
        try:
            with safe_open(file, "pt") as opened:
                names = list(opened.keys())
            for name in names:
                # The file is mapped into memory, for each tensor anew: then whoever replaces a
                # tensor, as lay_out_for_decoding does, gives its memory back.
                with safe_open(file, "pt") as opened:
                    stored[name] = opened.get_tensor(name)
        except SafetensorError as error:
            raise ValueError(
                f"{file} is cut short or no safetensors file ({error}): copy it again"
            ) from None
    weights = {}
    for name, tensor in stored.items():
        name = name.removeprefix("_orig_mod.").removeprefix("transformer.")
        if not name.endswith((".attn.bias", ".attn.masked_bias")):
            weights[name] = tensor
    head = weights.pop("lm_head.weight", None)
    if head is not None and not torch.equal(head, weights.get("wte.weight", head)):
        raise ValueError(
            f"{folder}: lm_head.weight differs from wte.weight, model.py shares the two"
        )
    return weights


def _weight_files(folder: Path) -> list[Path]:
    index = "model.safetensors.index.json"
    names = ["model.safetensors"]
    if find(folder, index).is_file() and not find(folder, names[0]).is_file():
        shards = _read_json(folder, index).get("weight_map")
        if not isinstance(shards, dict) or not all(
            isinstance(shard, str) and Path(shard).name == shard for shard in shards.values()
        ):
            raise ValueError(f"{folder}: {index} has no map of weights to files: copy it again")
        names = sorted(set(shards.values()))
    for name in names:
        if not find(folder, name).is_file():
            if find(folder, "pytorch_model.bin").is_file():
                raise ValueError(
                    f"{folder} has its weights in pytorch_model.bin, a pickle, which may run code "
                    'when it is opened: if you trust it, convert it with `python -c "from '
                    "transformers import GPT2LMHeadModel as M; "
                    f"M.from_pretrained('{folder}').save_pretrained('{folder}')\"`"
                )
            raise ValueError(f"{folder} has no {name}: the weights are missing")
    return [find(folder, name) for name in names]


def _check_names_and_shapes(
    folder: Path, found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]
) -> None:
    for problem, names in (
        ("lacks", [name for name in expected if name not in found]),
        ("has unknown", [name for name in found if name not in expected]),
    ):
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            raise ValueError(f"{folder}: model.safetensors {problem} {', '.join(names[:5])}{more}")
    for name, tensor in expected.items():
        if found[name].shape != tensor.shape:
            raise ValueError(
                f"{folder}: {name} is {tuple(found[name].shape)} in model.safetensors, "
                f"but {tuple(tensor.shape)} by config.json"
            )


def end_of_text_ids(folder: Path | str) -> list[int]:
    """The ids that end a text, by generation_config.json or config.json; [] if none is named."""
    folder = Path(folder)
    for name in ("generation_config.json", "config.json"):
        if find(folder, name).is_file():
            ids = _read_json(folder, name).get("eos_token_id")
            if ids is not None:
                return ids if isinstance(ids, list) else [ids]
    return []


def save(folder: Path | str, model: GPT, files: Mapping[str, bytes]) -> None:
    """Write the whole folder, or leave it as it was, even if the process is killed meanwhile.

    `files` has the contents of vocab.json and merges.txt, and of any more that belong to this state
    of the model. Other files in the folder stay.
    """
    end_of_text = json.loads(files["vocab.json"])[END_OF_TEXT]
    weights = {f"transformer.{name}": tensor for name, tensor in model.state_dict().items()}
    with whole_folder(Path(folder)) as new:
        for name, content in _json_files(model, end_of_text).items():
            (new / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        for name, data in files.items():
            (new / name).write_bytes(data)
        (new / "model.safetensors").write_bytes(to_bytes(weights, metadata={"format": "pt"}))


def pack_optimizer(optimizer: torch.optim.Optimizer) -> bytes:
    """The optimizer's running means as the contents of a safetensors file."""
    state = optimizer.state_dict()["state"]
    return to_bytes({f"{i}.{key}": value for i, of in state.items() for key, value in of.items()})


def unpack_optimizer(optimizer: torch.optim.Optimizer, file: Path) -> None:
    """Give the optimizer the running means that `pack_optimizer` packed."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in load_file(file).items():
        i, key = name.split(".")
        state.setdefault(int(i), {})[key] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    file = find(folder, name)
    if not file.is_file():
        raise ValueError(f"{folder} has no {name}: it is not the folder of a model")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON ({error}): copy it again") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file} is no JSON object: copy it again")
    return content


def _json_files(model: GPT, end_of_text: int) -> dict[str, dict[str, Any]]:
    """What the ecosystem wants to know beside the weights; without eos ids nothing ever stops."""
    config = model.config
    special_ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end_of_text)
    special_tokens = dict.fromkeys(
        ("bos_token", "eos_token", "pad_token", "unk_token"), END_OF_TEXT
    )
    return {
        "config.json": {
            "architectures": ["GPT2LMHeadModel"],
            **{name: values[0] for name, values in IMPLEMENTED.items()},
            **{theirs: getattr(config, ours) for ours, theirs in CONFIG_NAMES.items()},
            "embd_pdrop": config.dropout,
            "attn_pdrop": config.dropout,
            "torch_dtype": str(model.wte.weight.dtype).removeprefix("torch."),
            **special_ids,
        },
        "generation_config.json": special_ids,
        "tokenizer_config.json": {
            "tokenizer_class": "GPT2Tokenizer",
            "model_max_length": config.block_size,
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            **special_tokens,
        },
    }
