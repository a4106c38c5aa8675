"""`python -m scheduler_svc.front`: one front process, started by the scheduler.

Writes the line "ready" to --ready-fd once its ports are bound, or "error: TEXT" if they cannot be. Ends with code 0 on
SIGTERM or when its parent is gone, 2 if it cannot listen or the scheduler refuses it. SIGINT is left to the parent.
"""

import argparse
import asyncio
import os
import signal
import sys

import structlog
import uvloop

from scheduler_svc.front.parent import die_with_parent, wait_for_orphanhood
from scheduler_svc.front.server import Front, FrontOptions, PortInUseError
from scheduler_svc.log import configure

STOP_SECONDS = 3.0
EXIT_REFUSED = 2


def main() -> int:
    """Parses the arguments and runs the front."""
    arguments = _parser().parse_args()
    configure(arguments.log_format)
    parent = os.getppid()
    die_with_parent()
    if hasattr(asyncio, "Runner"):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(arguments, parent))
    loop = uvloop.new_event_loop()
    try:
        return int(loop.run_until_complete(_run(arguments, parent)))
    finally:
        loop.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scheduler_svc.front", description=__doc__)
    parser.add_argument("--front-endpoint", required=True, help="ZeroMQ endpoint of the scheduler")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--internal-port", type=int, default=0, help="0: no internal server")
    parser.add_argument("--reuse-port", type=int, choices=(0, 1), default=0)
    parser.add_argument("--slow-reader-seconds", type=float, default=30.0)
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    parser.add_argument("--ready-fd", type=int, default=None, help="file descriptor that is told how the start went")
    return parser


async def _run(arguments: argparse.Namespace, parent: int) -> int:
    log = structlog.get_logger("pagewire.front")
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    refusals: list[str] = []

    def refused(reason: str) -> None:
        refusals.append(reason)
        stop.set()

    loop.add_signal_handler(signal.SIGTERM, stop.set)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    front = Front(_options(arguments), on_refusal=refused)
    try:
        await front.start()
    except PortInUseError as error:
        _tell(arguments.ready_fd, f"error: {error}")
        await front.stop(0)
        return EXIT_REFUSED
    _tell(arguments.ready_fd, "ready")
    log.info(
        "front_listening", host=arguments.host, port=front.port, internal_port=front.internal_port, pid=os.getpid()
    )
    orphaned = asyncio.ensure_future(wait_for_orphanhood(parent))
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait([orphaned, stopped], return_when=asyncio.FIRST_COMPLETED)
    is_orphan = orphaned.done() or os.getppid() != parent
    orphaned.cancel()
    stopped.cancel()
    if refusals:
        log.error("front_refused", reason=refusals[0])
    await front.stop(0 if is_orphan or refusals else STOP_SECONDS)
    return EXIT_REFUSED if refusals else 0


def _options(arguments: argparse.Namespace) -> FrontOptions:
    return FrontOptions(
        front_endpoint=arguments.front_endpoint,
        host=arguments.host,
        port=arguments.port,
        internal_port=arguments.internal_port or None,
        reuse_port=bool(arguments.reuse_port),
        slow_reader_seconds=arguments.slow_reader_seconds,
    )


def _tell(ready_fd: int | None, line: str) -> None:
    """One line to whoever started us; an error to stderr if nobody listens."""
    if ready_fd is None:
        if line.startswith("error"):
            print(line, file=sys.stderr)
        return
    with os.fdopen(ready_fd, "w") as pipe:
        pipe.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
