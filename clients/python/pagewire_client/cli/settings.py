"""The few service settings ``serve`` must know itself: flag, then environment, then YAML file, then default.

The services read the same sources themselves and check everything; here only what decides where they meet is read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..config import setting, state_directory
from ..options import nearest
from ..stack import RESTART_PATIENCE
from .access import is_loopback
from .failures import UsageError
from .flags import FLAGS, Parsed

_NAMES = frozenset({flag.name.replace("-", "_") for flag in FLAGS} | {"model"})
_GUARDS = ("tls-cert", "auth-tokens-file", "auth-jwks-file")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Where a stack's parts meet, and how many there are. ``patience``: flags for a scheduler whose workers restart."""

    host: str
    port: int
    internal_port: int
    metrics_port: int
    worker_endpoint: str
    num_workers: int
    num_ranks: int
    drain_seconds: float
    zmq_curve_dir: str | None
    patience: tuple[str, ...]
    model: str | None

    @property
    def local_target(self) -> str:
        """Where this machine's own clients connect: the internal port, if there is one, asks for no credentials."""
        return f"127.0.0.1:{self.internal_port}" if self.internal_port else self.client_target

    @property
    def client_target(self) -> str:
        """The address a client on this machine connects to."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "[::]": "::1"}.get(self.host, self.host).strip("[]")
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


def serve_settings(parsed: Parsed) -> ServeSettings:
    """Resolves them. Raises: UsageError, naming the setting, its value and what is allowed."""
    sources = _Sources(parsed)
    port = sources.integer("port", 50051, 1, 65535)
    state_dir = Path(sources.text("state-dir") or state_directory()).absolute()
    internal_port = sources.integer("internal-port", 50052, 0, 65535)
    guard = next((name for name in _GUARDS if sources.text(name)), None)
    if guard is not None and not internal_port:
        raise UsageError(f"--internal-port 0: with --{guard} this command needs it, to see that the server is ready")
    return ServeSettings(
        host=sources.text("host") or "127.0.0.1",
        port=port,
        internal_port=internal_port,
        metrics_port=sources.integer("metrics-port", 9464, 0, 65535),
        worker_endpoint=_worker_endpoint(sources) or f"ipc://{state_dir}/worker-{port}.sock",
        num_workers=sources.integer("num-workers", 1, 1, 64),
        num_ranks=sources.integer("tensor-parallel-size", 1, 1, 64),
        drain_seconds=sources.seconds("drain-seconds", 30.0, 86400.0),
        zmq_curve_dir=sources.text("zmq-curve-dir"),
        patience=() if sources.text("worker-lost-seconds") else RESTART_PATIENCE,
        model=parsed.model or sources.text("model"),
    )


def _worker_endpoint(sources: _Sources) -> str | None:
    """Checked here, because a worker would call it --scheduler."""
    endpoint = sources.text("worker-endpoint")
    if endpoint and not re.fullmatch(r"ipc://.+|tcp://.+:\d{1,5}", endpoint):
        raise UsageError(f"--worker-endpoint {endpoint}: must be ipc://PATH or tcp://ADDRESS:PORT")
    is_open = (
        endpoint is not None and endpoint.startswith("tcp://") and not is_loopback(endpoint.removeprefix("tcp://"))
    )
    if is_open and sources.text("zmq-curve-dir") is None:
        raise UsageError(f"--worker-endpoint {endpoint}: a link beyond this machine needs --zmq-curve-dir")
    return endpoint


class _Sources:
    """Flags, environment and file, in this order."""

    def __init__(self, parsed: Parsed) -> None:
        self._parsed = parsed
        self._file = settings_file(parsed)

    def text(self, name: str) -> str | None:
        value = self._parsed.value(name)
        if value is None:
            value = setting(name)
            if name == "port" and value is not None and value.startswith("tcp://"):
                value = None  # Kubernetes injects this for a Service called pagewire.
        if value is None:
            value = self._file.get(name.replace("-", "_"))
        return None if value is None else str(value)

    def integer(self, name: str, default: int, least: int, most: int) -> int:
        value = self.text(name)
        if value is None:
            return default
        if not value.isascii() or not value.isdigit() or not least <= int(value) <= most:
            raise UsageError(f"--{name} {value}: must be an integer from {least} to {most}")
        return int(value)

    def seconds(self, name: str, default: float, most: float) -> float:
        value = self.text(name)
        if value is None:
            return default
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0.0 <= number <= most:
            raise UsageError(f"--{name} {value}: must be a number from 0 to {most:g}")
        return number


def settings_file(parsed: Parsed) -> dict[str, Any]:
    """The settings of --config. Raises: UsageError, also for a name that no program here knows: it would do nothing."""
    path = parsed.value("config") or setting("config")
    if path is None:
        return {}
    try:
        loaded = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"--config {path}: cannot be read: {str(error).splitlines()[0]}") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise UsageError(f"--config {path}: must be a mapping of settings")
    named = {str(name).replace("-", "_"): value for name, value in loaded.items()}
    for name in named:
        if name not in _NAMES:
            raise UsageError(f"--config {path}: unknown setting {name!r}{nearest(name, _NAMES)}")
    return named
