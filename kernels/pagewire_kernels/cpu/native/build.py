"""Compiles kernels.c for this machine with its own C compiler, once: the library is kept in the user's cache.

The name of the library is a digest of everything it depends on: sources, flags, compiler and processor. OpenMP's
symbols are left open and found in the runtime that torch has loaded, so that both share one pool of threads and
``torch.set_num_threads`` counts for both.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

_FOLDER = Path(__file__).parent
_SOURCES = ("kernels.c", "kernels.inc", "quantized.inc")
_FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC")
_COMPILE_SECONDS = 120


class BuildError(Exception):
    """There is no compiler, or what it made cannot be loaded; the message is one line."""


def load_library() -> ctypes.CDLL:
    """The compiled library; takes about two seconds the first time. Raises BuildError."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise BuildError("there is no C compiler")
    name = f"{_digest(compiler)}.so"
    with tempfile.TemporaryDirectory(prefix="pagewire-kernels-") as scratch:
        kept = _cache(Path(scratch)) / name
        if not kept.exists():
            built = _compile(compiler, Path(scratch))
            shutil.copyfile(built, kept.with_suffix(f".{os.getpid()}"))
            kept.with_suffix(f".{os.getpid()}").replace(kept)
        try:
            return ctypes.CDLL(str(kept), mode=os.RTLD_NOW)
        except OSError as error:
            raise BuildError(f"the compiled kernels cannot be loaded: {error}") from None


def _cache(otherwise: Path) -> Path:
    """A folder that nobody else can write to."""
    folder = Path.home() / ".cache" / "pagewire" / "kernels"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError:
        return otherwise
    is_private = found.st_uid == os.getuid() and not found.st_mode & 0o022
    return folder if is_private and os.access(folder, os.W_OK) else otherwise


def _digest(compiler: str) -> str:
    parts = hashlib.sha256()
    for name in _SOURCES:
        parts.update((_FOLDER / name).read_bytes())
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False, timeout=_COMPILE_SECONDS).stdout
    for part in (" ".join(_FLAGS).encode(), version, platform.machine().encode(), _processor()):
        parts.update(hashlib.sha256(part).digest())
    return parts.hexdigest()[:32]


def _processor() -> bytes:
    """What ``-march=native`` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().split(b"\n")
    except OSError:
        return platform.processor().encode()
    return b"\n".join(sorted({line for line in lines if line.startswith((b"model name", b"flags", b"Features"))}))


def _compile(compiler: str, scratch: Path) -> Path:
    """Two steps: linking without ``-fopenmp`` leaves the runtime's symbols to the one torch has loaded."""
    compiled, linked = scratch / "kernels.o", scratch / "kernels.so"
    _run([compiler, *_FLAGS, "-c", str(_FOLDER / _SOURCES[0]), "-o", str(compiled)])
    _run([compiler, "-shared", str(compiled), "-o", str(linked)])
    return linked


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_COMPILE_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"{Path(command[0]).name} cannot compile the CPU kernels: {error}") from None
