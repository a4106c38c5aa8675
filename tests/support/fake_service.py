"""Stands in for a scheduler or a worker in tests of the local stack.

usage: python fake_service.py scheduler PORT LOG | worker LOG CRASHES EXIT_CODE | fail EXIT_CODE MESSAGE | deaf LOG

A scheduler serves health and notes in LOG when it is asked to stop. A worker crashes with EXIT_CODE as often as the
file CRASHES has lines, taking one each time, then runs until it is asked to stop.
"""

import signal
import sys
from concurrent import futures
from pathlib import Path

# Blocked and waited for, not handled: a handler that sets an event can find its lock held by the thread it interrupts.
STOP = {signal.SIGTERM}


def note(log: Path, text: str) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(text + "\n")


def scheduler(port: str, log: str) -> int:
    import grpc
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2), options=[("grpc.so_reuseport", 0)])
    servicer = health.HealthServicer()
    servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    print("scheduler listening", file=sys.stderr, flush=True)
    signal.sigwait(STOP)
    note(Path(log), "scheduler stopped")
    server.stop(None).wait()
    return 0


def worker(log: str, crashes: str, exit_code: str) -> int:
    note(Path(log), "worker started")
    left = Path(crashes).read_text(encoding="utf-8").splitlines()
    if left:
        Path(crashes).write_text("\n".join(left[1:]), encoding="utf-8")
        print("worker crashes now", file=sys.stderr, flush=True)
        return int(exit_code)
    signal.sigwait(STOP)
    note(Path(log), "worker stopped")
    return 0


def fail(exit_code: str, message: str) -> int:
    print(message, file=sys.stderr, flush=True)
    return int(exit_code)


def deaf(log: str) -> int:
    note(Path(log), "deaf started")
    signal.sigwait({signal.SIGUSR1})
    return 0


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    role = {"scheduler": scheduler, "worker": worker, "fail": fail, "deaf": deaf}[sys.argv[1]]
    sys.exit(role(*sys.argv[2:]))
