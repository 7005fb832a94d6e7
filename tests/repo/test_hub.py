import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from day0.errors import Day0Error
from day0.repo import ModelRepo, hub
from day0.repo.headers import FIRST_READ_BYTES
from tests.repo.hub_server import COMMIT, Hub, HubRepo, serve
from tests.repo.safetensors_files import data_bytes, encode, layout, write_random

ID = "org/toy-model"
SHARD_1, SHARD_2 = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def shard(tensors, seed: int) -> bytes:
    entries = layout(tensors)
    return encode(entries) + random.Random(seed).randbytes(data_bytes(entries))


def toy_files() -> dict[str, bytes]:
    """Two shards of 1 MiB; the header of the second is longer than the first 64 KiB."""
    first = {"a": ("F32", (512, 512)), "b": ("BF16", (3, 5))}
    second = {f"layers.{index}.some.long.name.of.a.weight": ("F32", (256,)) for index in range(1024)}
    weight_map = dict.fromkeys(first, SHARD_1) | dict.fromkeys(second, SHARD_2)
    return {
        "README.md": b"# toy",
        "config.json": json.dumps({"model_type": "toy"}).encode(),
        "tokenizer_config.json": b"{}",
        "modeling_toy.py": b"raise SystemExit",
        INDEX: json.dumps({"weight_map": weight_map}).encode(),
        SHARD_1: shard(first, 1),
        SHARD_2: shard(second, 2),
    }


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def _quick_and_apart(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[None]:
    """huggingface_hub reads its environment when it is imported, so its constants are set instead."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "no-token"))
    monkeypatch.setattr(hub, "FIRST_PAUSE_S", 0.01)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield
    huggingface_hub.close_session()


def use(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve({ID: HubRepo(toy_files())}) as running:
        use(monkeypatch, running.url)
        yield running


def as_bytes(tensor) -> bytes:
    import torch

    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def header_bytes(content: bytes) -> int:
    return 8 + int.from_bytes(content[:8], "little")


def test_of_weight_files_nothing_beyond_the_headers_is_fetched(server: Hub) -> None:
    repo = ModelRepo.open(ID)
    assert (repo.name, repo.revision, repo.config) == ("toy-model", COMMIT, {"model_type": "toy"})
    assert len(repo.tensors) == 1026
    assert repo.hash
    files = server.repos[ID].files
    assert header_bytes(files[SHARD_1]) < FIRST_READ_BYTES < header_bytes(files[SHARD_2])
    for path in (SHARD_1, SHARD_2):
        assert 0 < server.sent[path] <= header_bytes(files[path]) + FIRST_READ_BYTES
        assert server.sent[path] < len(files[path]) / 2
    assert server.sent[SHARD_2] == header_bytes(files[SHARD_2])
    assert server.sent["README.md"] == 0
    assert all(asked is not None for path, asked in server.ranges if path.endswith(".safetensors"))


def test_hub_and_folder_agree(server: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "toy-model"
    folder.mkdir()
    for path, content in server.repos[ID].files.items():
        (folder / path).write_bytes(content)
    local, remote = ModelRepo.open(folder), ModelRepo.open(ID)
    assert remote.hash != local.hash  # a commit names the hub's weights, samples a folder's
    assert remote.tensors == local.tensors
    assert remote.python_files == local.python_files == ("modeling_toy.py",)


def test_a_tensor_is_read_by_its_own_range(server: Hub) -> None:
    repo = ModelRepo.open(ID)
    tensor = repo.tensors["b"]
    before = server.sent[SHARD_1]
    found = repo.read_tensor("b")
    assert server.sent[SHARD_1] - before == tensor.nbytes == 30
    content = server.repos[ID].files[SHARD_1]
    assert as_bytes(found) == content[tensor.start : tensor.end]


def test_fetched_weights_are_read_from_the_cache(server: Hub, cache: Path) -> None:
    repo = ModelRepo.open(ID)
    repo.fetch_weights(["a"])
    assert (cache / "models--org--toy-model" / "snapshots" / COMMIT / SHARD_1).exists()
    assert server.sent[SHARD_1] >= len(server.repos[ID].files[SHARD_1])
    assert server.sent[SHARD_2] <= header_bytes(server.repos[ID].files[SHARD_2])
    before = server.sent[SHARD_1]
    direct = repo.read_tensor("a")
    again = ModelRepo.open(ID)
    assert as_bytes(again.read_tensor("a")) == as_bytes(direct)
    assert server.sent[SHARD_1] == before
    with pytest.raises(Day0Error, match="has no tensor 'zz'"):
        repo.fetch_weights(["zz"])


def test_small_files_are_fetched_once(server: Hub) -> None:
    for _ in range(2):
        assert ModelRepo.open(ID).config == {"model_type": "toy"}
    assert [path for path, _ in server.ranges] == ["config.json"]


def test_cache_dir(server: Hub, tmp_path: Path, cache: Path) -> None:
    assert ModelRepo.open(ID, cache_dir=tmp_path / "other").config
    assert (tmp_path / "other" / "models--org--toy-model").is_dir()
    assert not cache.exists()


def test_unknown_id(server: Hub) -> None:
    with pytest.raises(Day0Error, match="org/nope is not on the hub") as caught:
        ModelRepo.open("org/nope")
    assert "org/name" in caught.value.hint


def test_unknown_revision(server: Hub) -> None:
    assert ModelRepo.open(ID, revision=COMMIT).revision == COMMIT
    with pytest.raises(Day0Error, match="has no revision 'v9'"):
        ModelRepo.open(ID, revision="v9")


def test_gated_repo(server: Hub) -> None:
    server.repos[ID].gated = True
    repo = ModelRepo.open(ID)  # the hub lists a gated repo's files to anyone
    for ask in (lambda: repo.config, lambda: repo.files.safetensors_header(SHARD_1, headers_only=False)):
        with pytest.raises(Day0Error, match="org/toy-model is gated") as caught:
            ask()
        assert "HF_TOKEN" in caught.value.hint


def test_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        use(monkeypatch, f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(Day0Error, match=r"no connection to the hub at http://127.0.0.1:\d+ \(ConnectError\)"):
            ModelRepo.open(ID)


def test_no_such_host(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "http://hub.invalid")
    with pytest.raises(Day0Error, match="no connection to the hub at http://hub.invalid"):
        ModelRepo.open(ID)


def test_a_silent_server_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "REQUEST_TIMEOUT_S", 0.1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        use(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}")
        start = time.monotonic()
        with pytest.raises(Day0Error, match="ReadTimeout"):
            ModelRepo.open(ID)
        assert time.monotonic() - start < 10


def test_the_network_lost_after_opening(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = ModelRepo.open(ID)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the hub client's own retries pause up to 23 s in all
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        use(monkeypatch, f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(Day0Error, match="no connection to the hub"):
            _ = repo.tensors


def test_a_busy_server_is_asked_again_but_not_for_ever(server: Hub) -> None:
    server.repos[ID].failures = hub.ATTEMPTS - 1
    assert ModelRepo.open(ID).revision == COMMIT
    server.repos[ID].failures = 100
    with pytest.raises(Day0Error, match="the hub answers HTTP 503"):
        ModelRepo.open(ID)
    assert server.repos[ID].failures == 100 - hub.ATTEMPTS


def test_an_unknown_id_is_asked_for_once(server: Hub) -> None:
    with pytest.raises(Day0Error):
        ModelRepo.open("org/nope")
    assert server.requests["GET /api/models/org/nope"] == 1


def test_offline_uses_the_cache(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    online = ModelRepo.open(ID)
    assert online.config
    online.files.read_bytes(INDEX)
    online.fetch_weights()
    requests = server.requests.total()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for revision in (None, COMMIT):
        repo = ModelRepo.open(ID, revision=revision)
        assert (repo.name, repo.revision, repo.config) == ("toy-model", COMMIT, {"model_type": "toy"})
        assert repo.tensors == online.tensors
    assert server.requests.total() == requests


def test_offline_without_cache(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(Day0Error, match="not in the hub cache, and HF_HUB_OFFLINE is set"):
        ModelRepo.open(ID)
    assert server.requests.total() == 0


def test_offline_with_config_but_without_weights(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    online = ModelRepo.open(ID)
    assert online.config
    online.files.read_bytes(INDEX)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(Day0Error, match=f"names {SHARD_1}, which is not in the repo"):
        _ = ModelRepo.open(ID).tensors


def test_the_token_goes_to_the_hub_and_not_beyond(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecret")
    with serve({ID: HubRepo(toy_files())}, cdn=True) as running:
        use(monkeypatch, running.url)
        repo = ModelRepo.open(ID)
        assert len(repo.tensors) == 1026
        assert repo.read_tensor("b").shape == (3, 5)
        assert running.authorizations == {"hub": {"Bearer hf_secretsecret"}, "cdn": {""}}
        assert running.sent[SHARD_2] == header_bytes(running.repos[ID].files[SHARD_2])
        running.repos[ID].gated = True
        with pytest.raises(Day0Error) as caught:
            _ = ModelRepo.open(ID).config
    assert "secret" not in str(caught.value) + caplog.text


def test_a_server_without_ranges(server: Hub) -> None:
    server.repos[ID].ranges = False
    repo = ModelRepo.open(ID)
    assert repo.files.safetensors_header(SHARD_1, headers_only=False).tensors.keys() == {"a", "b"}
    with pytest.raises(Day0Error, match="does not answer ranged requests"):
        repo.files.read_range(SHARD_1, 100, 200)


def test_a_listed_size_that_lies(server: Hub) -> None:
    content = server.repos[ID].files[SHARD_1]
    server.repos[ID].listed_sizes[SHARD_1] = len(content) - 4
    with pytest.raises(Day0Error, match=f"{SHARD_1}: tensor 'b' ends at byte"):
        ModelRepo.open(ID).files.safetensors_header(SHARD_1, headers_only=False)
    server.repos[ID].files[SHARD_1] = content[:50]
    with pytest.raises(Day0Error, match="sent 50 of 65536 bytes"):
        ModelRepo.open(ID).files.safetensors_header(SHARD_1, headers_only=False)


def test_index_naming_a_missing_shard(server: Hub) -> None:
    del server.repos[ID].files[SHARD_2]
    with pytest.raises(Day0Error, match=f"names {SHARD_2}, which is not in the repo"):
        _ = ModelRepo.open(ID).tensors
    assert server.sent[SHARD_1] == 0


def test_pickle_only(server: Hub) -> None:
    server.repos["org/pickle"] = HubRepo({"config.json": b"{}", "pytorch_model.bin": b"\x80\x04."})
    with pytest.raises(Day0Error, match="pickle-only"):
        ModelRepo.open("org/pickle")
    assert server.sent["pytorch_model.bin"] == 0


def test_no_config(server: Hub) -> None:
    del server.repos[ID].files["config.json"]
    with pytest.raises(Day0Error, match="org/toy-model has no config.json"):
        _ = ModelRepo.open(ID).config


def test_not_a_hub(monkeypatch: pytest.MonkeyPatch, server: Hub) -> None:
    use(monkeypatch, "no-scheme")
    with pytest.raises(Day0Error, match="no-scheme"):
        ModelRepo.open(ID)


def test_a_cache_that_cannot_be_written(server: Hub, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Day0Error, match="hub cache cannot be written"):
        _ = ModelRepo.open(ID, cache_dir=tmp_path / "file" / "cache").config


def test_hf_endpoint_of_the_environment(server: Hub, tmp_path: Path) -> None:
    script = (
        "import sys; from day0.repo import ModelRepo; repo = ModelRepo.open(sys.argv[1]); "
        "print(len(repo.tensors), repo.revision)"
    )
    environment = os.environ | {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", script, ID], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["1026", COMMIT], done.stderr


def test_a_shard_in_a_subfolder(server: Hub, tmp_path: Path) -> None:
    write_random(tmp_path / "w.safetensors", {"w": ("F32", (4, 4))})
    server.repos["org/nested"] = HubRepo(
        {
            "config.json": b"{}",
            INDEX: json.dumps({"weight_map": {"w": "weights/w.safetensors"}}).encode(),
            "weights/w.safetensors": (tmp_path / "w.safetensors").read_bytes(),
        }
    )
    repo = ModelRepo.open("org/nested")
    ranged = repo.read_tensor("w")
    repo.fetch_weights()
    again = ModelRepo.open("org/nested")
    assert again.tensors == repo.tensors
    assert as_bytes(again.read_tensor("w")) == as_bytes(ranged)


@pytest.mark.parametrize("path", ["../outside.py", "/etc/outside.py", "a\\..\\outside.py"])
def test_a_listing_that_leads_out_of_the_repo_is_refused(server: Hub, path: str) -> None:
    server.repos["org/odd"] = HubRepo({"config.json": b"{}", path: b"x"})
    with pytest.raises(Day0Error, match="a path outside the repo"):
        ModelRepo.open("org/odd")
