"""`pagewire serve` that cannot start: exit code 2, one clear line, no process left."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from pagewire_client.stack import free_ports
from safetensors.numpy import load_file, save_file
from support.conditions import wait_until
from support.stack import MARK, kill_marked, marked_pids, new_mark
from support.tiny_models import make_model

LIMIT_SECONDS = 60


def serve_and_fail(model: Path, folder: Path, flags: Sequence[str] = ()) -> tuple[int, str]:
    """Exit code and stderr of a `pagewire serve` that is expected to end by itself; nothing of it may be left."""
    mark = new_mark()
    port, internal_port, metrics_port = free_ports(3)
    ports = ["--port", str(port), "--internal-port", str(internal_port), "--metrics-port", str(metrics_port)]
    command = [sys.executable, "-m", "pagewire_client.cli", "serve", str(model)]
    try:
        ended = subprocess.run(
            [*command, *ports, "--state-dir", str(folder / "state"), "--device", "cpu", *flags],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            env={**os.environ, MARK: mark},
            check=False,
        )
        wait_until(lambda: not marked_pids(mark), "all processes gone", 5)
    finally:
        kill_marked(mark)
    assert "Traceback" not in ended.stderr
    return ended.returncode, ended.stderr


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama."""
    return make_model(tmp_path_factory.mktemp("tiny")).path


@pytest.fixture
def tiny(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy of it to break."""
    return Path(shutil.copytree(tiny_model, tmp_path / "tiny"))


def test_a_model_path_that_does_not_exist(tmp_path: Path) -> None:
    code, text = serve_and_fail(tmp_path / "no-such-model.gguf", tmp_path)
    assert code == 2
    assert "no-such-model.gguf" in text


@pytest.mark.parametrize("num_bytes", [100, 60_000_000])
def test_a_truncated_gguf(gguf: Path, tmp_path: Path, num_bytes: int) -> None:
    broken = tmp_path / "broken.gguf"
    with gguf.open("rb") as whole:
        broken.write_bytes(whole.read(num_bytes))
    code, text = serve_and_fail(broken, tmp_path)
    assert code == 2
    assert [line for line in text.splitlines() if "broken.gguf" in line or "error" in line] == [
        line for line in text.splitlines() if line.startswith(f"pagewire worker: {broken}")
    ], text


def test_safetensors_without_a_tensor(tiny: Path, tmp_path: Path) -> None:
    weights = tiny / "model.safetensors"
    tensors = load_file(weights)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, weights, metadata={"format": "pt"})
    code, text = serve_and_fail(weights.parent, tmp_path)
    assert code == 2
    assert "model.layers.1.mlp.up_proj.weight" in text


def test_safetensors_with_a_tensor_too_many(tiny: Path, tmp_path: Path) -> None:
    weights = tiny / "model.safetensors"
    tensors = load_file(weights)
    tensors["model.layers.9.mlp.up_proj.weight"] = tensors["model.layers.1.mlp.up_proj.weight"].copy()
    save_file(tensors, weights, metadata={"format": "pt"})
    code, text = serve_and_fail(weights.parent, tmp_path)
    assert code == 2
    assert "model.layers.9.mlp.up_proj.weight" in text


def test_truncated_safetensors(tiny: Path, tmp_path: Path) -> None:
    weights = tiny / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    code, text = serve_and_fail(weights.parent, tmp_path)
    assert code == 2
    assert "model.safetensors" in text


def test_an_unknown_architecture(tiny: Path, tmp_path: Path) -> None:
    config = tiny / "config.json"
    values = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**values, "architectures": ["NoSuchForCausalLM"], "model_type": "nosuch"}))
    code, text = serve_and_fail(config.parent, tmp_path)
    assert code == 2
    assert "NoSuchForCausalLM" in text or "nosuch" in text


@pytest.mark.parametrize("flag", ["--port", "--internal-port"])
def test_a_port_in_use(tiny: Path, tmp_path: Path, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, text = serve_and_fail(tiny, tmp_path, [flag, str(port)])
    assert code == 2
    assert str(port) in text


@pytest.mark.parametrize(
    ("flag", "value"), [("--page-size", "0"), ("--max-num-seqs", "many"), ("--dtype", "int3"), ("--port", "99999")]
)
def test_a_wrong_value_is_named(tiny: Path, tmp_path: Path, flag: str, value: str) -> None:
    code, text = serve_and_fail(tiny, tmp_path, [flag, value])
    assert code == 2
    assert flag in text
    assert value in text
