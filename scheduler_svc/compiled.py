"""Whether the hot modules run from their source, or from the same source compiled to C extensions by mypyc (ADR 0040).

The source is the definition and always there. Compiled modules are made by ``compilation.py`` and kept in the package,
in a folder named by a digest of everything they depend on: their sources, and the interpreter. So modules that were
compiled from anything else than the source beside them are never loaded. A process runs one or the other, chosen when
the package is loaded, before any settings are read: ``PAGEWIRE_PURE_PYTHON=1`` chooses the source.
"""

import hashlib
import os
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).parent
KEPT = PACKAGE / "__compiled__"
_CORE = (
    *("accounts", "admission", "batcher", "claims", "decoding", "expiry", "fairness", "family", "flight_recorder"),
    *("hit_counts", "page_hash", "page_pool", "placement", "plan", "prefix_cache", "prefix_history", "rates"),
    *("registry", "request", "results", "scheduler", "shared_prefixes", "step", "step_pace", "stop_tokens", "supply"),
    *("tally", "token_ring", "types", "waiting", "worker"),
)
_SERVICE = (
    *("columns", "drain_rate", "ended_requests", "expected_rows", "front_codec", "front_desk", "histogram"),
    *("messages", "outbox", "output_key", "replies", "request_metrics", "requests", "worker_codec"),
)
SOURCES = (*(f"core/{name}.py" for name in _CORE), *(f"{name}.py" for name in _SERVICE))
"""What is compiled: what a step runs through."""
_TYPES = ("core/errors.py", "core/value.py", "compiled_source.py")
"""What the compiled modules depend on beside each other."""


class CompiledModules:
    """Finds the modules of a folder in place of their sources."""

    def __init__(self, folder: Path) -> None:
        suffix = EXTENSION_SUFFIXES[0]
        names = (path.relative_to(folder).as_posix().removesuffix(suffix) for path in folder.rglob(f"*{suffix}"))
        self._paths = {name.replace("/", "."): folder / f"{name}{suffix}" for name in names}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = self._paths.get(name)
        if found is None:
            return None
        return spec_from_file_location(name, found, loader=ExtensionFileLoader(name, str(found)))


def folder() -> Path:
    """Where the modules are that were compiled from the sources as they are now, if they have been."""
    digest = hashlib.sha256(f"{sys.version} {sysconfig.get_platform()}".encode())
    for name in (*SOURCES, *_TYPES):
        digest.update(hashlib.sha256((PACKAGE / name).read_bytes()).digest())
    return KEPT / digest.hexdigest()[:32]


def choose() -> str:
    """Chooses for this process, before anything else of the package is loaded; says what, and why."""
    if os.environ.get("PAGEWIRE_PURE_PYTHON", "") not in ("", "0"):
        return "source, by PAGEWIRE_PURE_PYTHON"
    found = folder()
    if not found.is_dir():
        return "source, it is not compiled"
    sys.meta_path.insert(0, CompiledModules(found))
    return "compiled"
