"""Models by name, from a server on this machine that answers as the Hub does (T2)."""

import hashlib
import json
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from huggingface_hub import HfApi

import sample
from support.checkpoint import load
from support.download import download, folder_of

PROMPT = "Once upon a time"
COMMIT = 40 * "a"
WEIGHTS = "model.safetensors"


class Hub(ThreadingHTTPServer):
    """Serves folders as models. `fault` makes it fail; `sent` lists the files that it sent."""

    fault: str | None = None

    def __init__(self, models: dict[str, Path]):
        super().__init__(("127.0.0.1", 0), Answer)
        self.models, self.sent = models, list[str]()


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        path = self.path.split("?")[0].strip("/")
        name = next((name for name in self.server.models if f"{name}/" in path), None)
        if self.server.fault == "gated":
            return self.refuse(403, "GatedRepo")
        if name is None:
            return self.refuse(401, "RepoNotFound")
        folder = self.server.models[name]
        if path.startswith("api/models/"):
            files = [{"type": "file", "oid": file.name, "size": file.stat().st_size,
                      "path": file.name} for file in folder.iterdir()]  # fmt: skip
            content = json.dumps(files if "/tree/" in path else {"sha": COMMIT}).encode()
            return self.send(content, content if body else b"", "application/json")
        revision, file = path.split("/resolve/")[1].rsplit("/", 1)
        if revision not in ("main", "v1", COMMIT):
            return self.refuse(404, "RevisionNotFound")
        if not (folder / file).is_file():
            return self.refuse(404, "EntryNotFound")
        content = data = (folder / file).read_bytes()
        if body:
            self.server.sent.append(file)
            if self.server.fault == "truncated" and file == WEIGHTS:
                content = data = data[: len(data) // 2]
            if self.server.fault == "cut" and file == WEIGHTS:
                data = data[:1000]
        self.send(content, data if body else b"", "application/octet-stream")

    def send(self, content: bytes, data: bytes, kind: str) -> None:
        """The head of an answer with this content, and as much of it as `data`."""
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(tmp_path, monkeypatch, small_folder) -> Iterator[Hub]:
    """The server, with a model under several names, and an empty cache; no folder is around."""
    names = ("openai-community/gpt2", "distilgpt2", "someone/their-gpt2")
    server = Hub(dict.fromkeys(names, small_folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    constants = huggingface_hub.constants
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    pages = constants.HUGGINGFACE_CO_URL_TEMPLATE
    pages = address + pages[pages.index("/{repo_id}") :]
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", pages)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(HfApi, "__init__", at_address(HfApi.__init__, address))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between the tries
    monkeypatch.chdir(tmp_path)
    yield server
    server.shutdown()
    server.server_close()


def at_address(init: Any, address: str) -> Any:
    return lambda self, endpoint=None, **options: init(self, endpoint or address, **options)


@pytest.fixture
def edited_model(hub, edited) -> Any:
    """Serve a model of the folder `edited`, and return its id and folder."""

    def serve(changes: dict[str, dict[str, object]]) -> tuple[str, Path]:
        folder = edited(changes)
        hub.models["someone/other"] = folder
        return "someone/other", folder

    return serve


@pytest.mark.parametrize(
    "name",
    ["gpt2", "openai-community/gpt2", "distilgpt2", "someone/their-gpt2", "someone/their-gpt2@v1",
     f"someone/their-gpt2@{COMMIT}"],
)  # fmt: skip
def test_any_id_is_fetched_once_config_first_and_kept(hub, small_folder, name):
    folder = folder_of(name)
    assert hub.sent[0] == "config.json"
    assert sorted(hub.sent) == sorted(file.name for file in small_folder.iterdir())
    for file in small_folder.iterdir():
        assert (folder / file.name).read_bytes() == file.read_bytes()
    hub.sent.clear()
    assert folder_of(name) == folder
    assert hub.sent == []


def test_a_kept_copy_needs_no_network(hub, monkeypatch):
    folder = download("distilgpt2")
    hub.shutdown()
    hub.server_close()  # nobody answers now
    assert download("distilgpt2") == folder
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert download("distilgpt2") == folder
    assert load(folder)[0].config.vocab_size == 400


def test_weights_in_several_files_and_a_tokenizer_json_are_fetched(hub, small_folder, tmp_path):
    from transformers import AutoTokenizer, GPT2LMHeadModel

    folder = tmp_path / "sharded"
    GPT2LMHeadModel.from_pretrained(small_folder).save_pretrained(folder, max_shard_size="50KB")
    AutoTokenizer.from_pretrained(small_folder).save_pretrained(folder)
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    (folder / "README.md").write_bytes(b"not of use here")
    hub.models["someone/sharded"] = folder
    model, tokenizer = load(folder_of("someone/sharded"))
    assert tokenizer.n_vocab == model.config.vocab_size == 400
    assert len([name for name in hub.sent if name.startswith("model-")]) > 1
    assert not {"pytorch_model.bin", "README.md", "vocab.json"} & set(hub.sent)


def test_the_shell_takes_a_folder_before_an_id_of_the_same_name(hub, capsys, small_folder):
    assert sample.main(["--model", "gpt2", "--max-new-tokens", "3", PROMPT]) == 0
    assert capsys.readouterr().out.startswith(PROMPT)
    hub.sent.clear()
    shutil.copytree(small_folder, "gpt2")
    Path("gpt2/vocab.json").unlink()
    assert sample.main(["--model", "gpt2", PROMPT]) == 2
    assert "gpt2 has no vocab.json" in capsys.readouterr().err
    assert hub.sent == []


@pytest.mark.parametrize("name", ["./nobody", "/nobody/here", "../x", "a/b/c", "", "a b", "@main"])
def test_what_cannot_be_an_id_is_not_asked_for(hub, name):
    assert folder_of(name) == Path(name)
    assert hub.sent == []


def refusal(name: str) -> str:
    """What the shell says, in one line."""
    with pytest.raises(ValueError, match=r"^\S") as error:
        folder_of(name)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"model_type": "llama"}, "model_type = 'llama', but model.py implements only 'gpt2'"),
        ({"model_type": "gpt_neo"}, "model_type = 'gpt_neo'"),
        ({"activation_function": "relu"}, "activation_function = 'relu'"),
    ],
)
def test_another_kind_of_model_is_refused_by_name_before_its_weights(
    hub, edited_model, config, told
):
    name, _ = edited_model({"config.json": config})
    assert f"someone/other: config.json has {told}" in refusal(name)
    assert hub.sent == ["config.json"]


def test_a_model_without_safetensors_says_how_to_convert_it(hub, edited_model):
    name, folder = edited_model({})
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    told = refusal(name)
    assert told.startswith("someone/other has no weights in safetensors: convert them with `python")
    assert "'someone/other'" in told
    assert "pytorch_model.bin" not in hub.sent


def test_a_missing_id_revision_or_config_is_told_in_one_sentence(hub, edited_model):
    missing = "nobody/none is not a folder here, and the Hub has no such model: check the name"
    assert refusal("nobody/none").startswith(missing)
    assert "but no such revision" in refusal("someone/their-gpt2@v9")
    name, folder = edited_model({})
    (folder / "config.json").unlink()
    assert "someone/other has no config.json" in refusal(name)
    hub.fault = "gated"
    assert "accept its terms on its page" in refusal("someone/their-gpt2")


@pytest.mark.parametrize("fault", ["cut", "truncated"])
def test_a_broken_download_says_so_and_the_next_one_completes_it(hub, small_folder, fault):
    hub.fault = fault
    assert re.search(r"could not be downloaded \(.*\): try again$", refusal("distilgpt2"))
    hub.fault = None
    weights = folder_of("distilgpt2") / WEIGHTS
    assert weights.read_bytes() == (small_folder / WEIGHTS).read_bytes()


@pytest.mark.parametrize("how", ["offline", "nobody answers"])
def test_without_a_network_the_error_says_where_files_may_be_put(hub, monkeypatch, how):
    if how == "offline":
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    else:
        hub.shutdown()
        hub.server_close()
    told = refusal("someone/their-gpt2")
    assert (
        "nor whole in the cache, and the Hub can't be reached: put its files into a folder" in told
    )


def test_a_half_finished_download_is_told_without_a_network(hub):
    hub.fault = "cut"
    refusal("distilgpt2")
    hub.shutdown()
    hub.server_close()
    assert "can't be reached" in refusal("distilgpt2")


@pytest.mark.parametrize("lost", [[WEIGHTS], ["vocab.json"], [WEIGHTS, "merges.txt"]])
def test_a_cache_with_a_part_of_a_model_is_not_taken_for_the_whole(hub, monkeypatch, lost):
    """Without a network it said that the model has no weights in safetensors, which is false."""
    folder = download("distilgpt2")
    for name in lost:
        (folder / name).unlink()
    for listing in folder.parents[1].glob("trees/*"):
        listing.unlink()  # older versions of huggingface_hub keep none
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "nor whole in the cache, and the Hub can't be reached" in refusal("distilgpt2")


def test_without_huggingface_hub_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    told = refusal("someone/their-gpt2")
    assert told.startswith("someone/their-gpt2 is not a folder here, and fetching it")
    assert 'pip install -e ".[gpt2]"' in told
