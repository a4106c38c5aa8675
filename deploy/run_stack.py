"""Runs the services of docker-compose.yml as processes of this machine: the same commands and files, no containers.

usage: python deploy/run_stack.py [--profile cpu|gpu] [--model MODEL]     (`make stack`)

What a container would see is put in its place: host names become 127.0.0.1, 0.0.0.0 becomes loopback, mounted files are
copied with their ports and paths rewritten, named volumes and secrets become folders and files of one private folder.
The programs must be installed: `pagewire` and `envoy` (`make` puts both into .venv), `prometheus` from the system. A
service whose program is missing is left out with a notice.
"""

import argparse
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pagewire_client.child import Child, Command, describe_exit

ROOT = Path(__file__).resolve().parents[1]
PORTS = (50051, 50052, 9464, 8080, 9901, 9090)
"""Every port the compose file and the mounted files name."""
_PROGRAMS = {"scheduler": "pagewire", "worker-cpu": "pagewire", "worker-gpu": "pagewire"}
_STOP_SECONDS = 45.0


@dataclass
class Layout:
    """Where on this machine things are that containers know by another name."""

    folder: Path
    variables: Mapping[str, str]
    ports: Mapping[int, int] = field(default_factory=dict)
    """Of PORTS, those that move."""

    def interpolated(self, text: str) -> str:
        """``text`` with ``${NAME:-default}`` replaced as compose does."""
        return re.sub(r"\$\{(\w+)(?::-([^}]*))?\}", lambda m: self.variables.get(m[1]) or m[2] or "", text)

    def local(self, text: str, paths: Mapping[str, str]) -> str:
        """``text`` with this machine's paths, hosts and ports."""
        if paths:
            inside = "|".join(re.escape(path) for path in sorted(paths, key=len, reverse=True))
            text = re.sub(rf"(?<![\w/])({inside})(?![\w-])", lambda m: paths[m[1]], text)
        text = re.sub(r"\b0\.0\.0\.0\b", "127.0.0.1", text)
        text = re.sub(r"(?<![\w./-])(scheduler|envoy|prometheus)(?=:\d|, port_value)", "127.0.0.1", text)
        for port, moved in self.ports.items():
            text = re.sub(rf"(?<![\w.]){port}(?!\w)", str(moved), text)
        return text


def commands(layout: Layout, profile: str, missing: Callable[[str], None] = lambda text: None) -> list[Command]:
    """The commands of a profile's services in the order of the file. ``missing`` is told what is left out and why."""
    compose = yaml.safe_load(layout.interpolated((ROOT / "docker-compose.yml").read_text()))
    secrets = {f"/run/secrets/{name}": _path(entry["file"]) for name, entry in compose["secrets"].items()}
    found = []
    for name, service in compose["services"].items():
        if profile not in service["profiles"]:
            continue
        words = [str(word) for word in service.get("command", [])]
        program = _PROGRAMS.get(name) or (words.pop(0) if words and not words[0].startswith("-") else name)
        path = shutil.which(program, path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
        if path is None:
            missing(f"{name} is left out: there is no {program} on this machine")
            continue
        paths = secrets | {inside: _mounted(layout, outside) for outside, inside in _volumes(service)}
        for place in paths.values():
            _rewrite(layout, Path(place), paths)
        local = [layout.local(word, paths) for word in words]
        found.append(Command(name=name, arguments=[path, *(word for word in local if word)]))
    return found


def _volumes(service: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(volume.split(":")[0], volume.split(":")[1]) for volume in service.get("volumes", [])]


def _path(text: str) -> str:
    return str((ROOT / text).resolve())


def _mounted(layout: Layout, outside: str) -> str:
    """Where a volume is: a folder of its own, or a copy of the file so that it can be rewritten."""
    if not outside.startswith((".", "/")):
        folder = layout.folder / outside
        folder.mkdir(mode=0o700, exist_ok=True)
        return str(folder)
    source = Path(_path(outside))
    if not source.is_file():
        return str(source)
    copy = layout.folder / source.name
    shutil.copyfile(source, copy)
    return str(copy)


def _rewrite(layout: Layout, place: Path, paths: Mapping[str, str]) -> None:
    if place.parent == layout.folder and place.suffix in (".yaml", ".yml"):
        place.write_text(layout.local(place.read_text(), paths))


class RunningStack:
    """The services' processes; one that ends is an error told to ``on_line``."""

    def __init__(self, found: list[Command], on_line: Callable[[str, str], None]) -> None:
        self.children = [Child(command, lambda line, name=command.name: on_line(name, line)) for command in found]  # type: ignore[misc]

    def child(self, name: str) -> Child:
        """The process of a service."""
        return next(child for child in self.children if child.name == name)

    def ended(self) -> list[str]:
        """Which services ended, and how."""
        codes = {child.name: child.exit_code() for child in self.children}
        return [f"{name}: {describe_exit(code)}" for name, code in codes.items() if code is not None]

    def stop(self) -> None:
        """Ends the services, last first: Envoy drains while there is something behind it."""
        for child in reversed(self.children):
            if child.exit_code() is None:
                child.terminate()
                if not child.wait(_STOP_SECONDS):
                    child.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description="The services of docker-compose.yml as processes of this machine.")
    parser.add_argument("--profile", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--model", default="", help="directory or .gguf file; the embedded model if not given")
    options = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with tempfile.TemporaryDirectory(prefix="pagewire-stack-") as folder:
        layout = Layout(Path(folder), {**os.environ, "MODEL": options.model})
        stack = RunningStack(commands(layout, options.profile, _say), lambda name, line: _say(f"{name}: {line}"))
        _say("callers: 127.0.0.1:8080 (gRPC, grpc-web, JSON), metrics: http://127.0.0.1:9090, Ctrl-C stops")
        while not stop.wait(0.5) and not stack.ended():
            pass
        ended = stack.ended()
        stack.stop()
    for line in ended:
        _say(f"ended by itself: {line}")
    return 1 if ended else 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
