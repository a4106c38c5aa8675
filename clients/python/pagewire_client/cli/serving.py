"""``pagewire serve``, ``scheduler``, ``worker`` and ``replay``."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from types import FrameType

import typer
from rich.console import Console
from rich.table import Table

from ..client import Client
from ..errors import ServerError, StackError
from ..installed import check_installed
from ..results import Model
from ..stack import LocalStack, scheduler_command, worker_commands
from .failures import EXIT_USAGE, UsageError
from .flags import Role, flags_of, parse
from .models import local_model, size_on_disk
from .settings import ServeSettings, serve_settings, settings_file

# Flags the launcher passes on resolved, so that every part sees the same.
_RESOLVED = ("host", "port", "internal-port", "worker-endpoint", "scheduler")


def scheduler(context: typer.Context) -> None:
    """Start a scheduler with its fronts; it takes the place of this process."""
    parsed = parse(context.args, flags_of(Role.SCHEDULER), takes_model=False)
    settings_file(parsed)
    check_installed("scheduler")
    _become(["-m", "scheduler_svc", *parsed.words_for(Role.SCHEDULER)])


def worker(context: typer.Context) -> None:
    """Start a worker: [MODEL] --scheduler ENDPOINT; it takes the place of this process."""
    parsed = parse(context.args, flags_of(Role.WORKER), takes_model=True)
    settings_file(parsed)
    check_installed("worker")
    _become(["-m", "gpu_worker", local_model(parsed.model), *parsed.words_for(Role.WORKER)])


def replay(context: typer.Context) -> None:
    """Replay a trace of a scheduler (--trace-file): FILE [LIMITS]; it takes the place of this process."""
    _become(["-m", "scheduler_svc.replay", *context.args])


def quantize(context: typer.Context) -> None:
    """Write a quantised copy: MODEL --method awq|gptq --calibration FILE --out DIR; takes this process's place."""
    check_installed("worker")
    words = list(context.args)
    if words and not words[0].startswith("-"):
        words[0] = local_model(words[0])
    _become(["-m", "gpu_worker.quantize", *words])


def keys(context: typer.Context) -> None:
    """Make the keys of encrypted links to workers: DIR [WORKER]; it takes the place of this process."""
    check_installed("scheduler")
    _become(["-m", "scheduler_svc.curve_keys", *context.args])


def serve(context: typer.Context) -> None:
    """Start scheduler and worker(s) on this machine: [MODEL] [FLAGS]. Ctrl-C drains."""
    parsed = parse(context.args, flags_of(*Role), takes_model=True)
    settings = serve_settings(parsed)
    check_installed("scheduler", "worker")
    check_port(settings.host, settings.port, "port")
    if settings.internal_port:
        check_port("127.0.0.1", settings.internal_port, "internal-port")
    if settings.zmq_curve_dir is not None:
        _make_keys(settings.zmq_curve_dir)
    model = local_model(settings.model)
    places = ["--host", settings.host, "--port", str(settings.port), "--internal-port", str(settings.internal_port)]
    meeting = ["--worker-endpoint", settings.worker_endpoint, *settings.patience]
    stack = LocalStack(
        scheduler=scheduler_command([*places, *meeting, *parsed.words_for(Role.SCHEDULER, _RESOLVED)]),
        workers=worker_commands(
            model,
            ["--scheduler", settings.worker_endpoint, *parsed.words_for(Role.WORKER, _RESOLVED)],
            settings.num_workers,
            settings.num_ranks,
        ),
        target=settings.local_target,
        internal_target=f"127.0.0.1:{settings.internal_port}",
        drain_seconds=settings.drain_seconds + 10.0,
        on_line=lambda name, line: _say(line),
        on_event=_say,
    )
    _run(stack, settings, model)


def _run(stack: LocalStack, settings: ServeSettings, model: str) -> None:
    """Until Ctrl-C or SIGTERM, both a clean end; raises if the stack broke down."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        stack.start()
        _print_summary(stack, settings, model)
        stack.wait()
    except KeyboardInterrupt:
        _say("draining; Ctrl-C again stops at once")
    except StackError as error:
        if error.exit_code == EXIT_USAGE:  # the child's own line, printed above, says what is wrong
            raise typer.Exit(EXIT_USAGE) from None
        raise
    finally:
        stack.stop()


def _say(line: str) -> None:
    """One write a line: the children's lines come from several threads."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _make_keys(directory: str) -> None:
    """Before anything starts: the workers need them as soon as the scheduler does."""
    made = subprocess.run(
        [sys.executable, "-m", "scheduler_svc.curve_keys", directory], capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise UsageError(f"--zmq-curve-dir {made.stderr.strip().removeprefix('pagewire keys: ')}")


def _become(arguments: list[str]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *arguments])


def check_port(host: str, port: int, name: str) -> None:
    """Refuses a port somebody listens on, before another server there could be mistaken for ours."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(f"--host {host}: is no address of this machine: {error.strerror}") from None
    try:
        with socket.socket(family, kind, protocol) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
    except OSError as error:
        raise UsageError(f"--{name} {port}: cannot listen on {host}:{port}: {error.strerror}") from None


def _print_summary(stack: LocalStack, settings: ServeSettings, model: str) -> None:
    """One table of what is served and where."""
    table = Table(title="pagewire is ready", show_header=False, title_justify="left")
    with stack.client() as client:
        for served in client.models():
            table.add_row("model", f"{served.name} ({served.architecture})")
            table.add_row("dtype", served.dtype + (f", {served.quantization}" if served.quantization else ""))
            table.add_row("files", f"{size_on_disk(model) / 2**20:.0f} MiB")
            if settings.internal_port:
                _add_pages(table, client, served)
    table.add_row("address", f"{settings.host}:{settings.port}")
    table.add_row("internal port", str(settings.internal_port or "none"))
    table.add_row("metrics port", str(settings.metrics_port or "none"))
    table.add_row("workers", str(settings.num_workers))
    Console(highlight=False).print(table)


def _add_pages(table: Table, client: Client, served: Model) -> None:
    """What fits; only the internal port tells."""
    try:
        num_tokens = client.load().num_pages * served.page_size
    except ServerError as error:
        table.add_row("pages", f"unknown: {error.message}")
        return
    table.add_row("pages", f"{num_tokens // served.page_size:,} of {served.page_size} tokens")
    table.add_row("tokens that fit", f"{num_tokens:,}")
    concurrency = num_tokens / max(1, served.max_model_len)
    table.add_row("concurrency", f"{concurrency:.1f} requests of max_model_len {served.max_model_len:,}")
