"""`python -m benchmarks.front`: what one front process costs, without a model.

A real scheduler with one front, behind it a scripted worker, before it client processes that only count bytes. The
figures that matter are tokens per CPU second of the front process alone (the other processes share the machine but not
the count), and how late a message leaves the front at a steady pace.

    streams N             Generate, text, a stop string on half of them; written as fast as the caller reads
    coalesced N           the same with `max_delay_ms`
    h2load N              the same from h2load instead of our client processes
    many N                the same over one GenerateMany stream
    pace N                a step every 20 ms: time from the first message of a step to each of its messages, beside a
                          bare grpc.aio server that writes the same messages in the same run
    first N               one request of 512 ids after the other, after a pause each: time to its first token by
                          Generate and to its end as LLM.generate asks, beside a health check
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from pagewire.v1 import generation_pb2 as pb
from pagewire_client import Client, HealthStatus, PagewireError, ServerError

from benchmarks import front_h2load
from benchmarks.ports import free_port

CLIENTS = 2
START_SECONDS = 30.0
WARM_UP, REPEATS = 20, 200
PROMPT_TOKENS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement."""

    name: str
    streams: int
    tokens: int
    max_delay_ms: int = 0
    many: bool = False
    h2load: bool = False
    step_seconds: float = 0.0
    pause_seconds: float = 0.0


CASES = (
    Case(name="streams 64", streams=64, tokens=1500),
    Case(name="streams 256", streams=256, tokens=500),
    Case(name="coalesced 64", streams=64, tokens=3000, max_delay_ms=250),
    Case(name="coalesced 256", streams=256, tokens=1500, max_delay_ms=250),
    Case(name="h2load 64", streams=64, tokens=3000, max_delay_ms=250, h2load=True),
    Case(name="h2load 256", streams=256, tokens=1500, max_delay_ms=250, h2load=True),
    Case(name="many 64", streams=64, tokens=3000, max_delay_ms=250, many=True),
    Case(name="many 256", streams=256, tokens=1500, max_delay_ms=250, many=True),
    Case(name="pace 64", streams=64, tokens=400, step_seconds=0.02),
    Case(name="first 1", streams=1, tokens=1, pause_seconds=0.01),
)


class Service:
    """Scheduler, front and scripted worker."""

    def __init__(
        self, directory: Path, step_seconds: float, max_num_seqs: int = 256, arguments: Sequence[str] = ()
    ) -> None:
        self.target = f"127.0.0.1:{free_port()}"
        endpoint = f"ipc://{directory}/worker.sock"
        self.metrics_port = free_port()
        port = self.target.rpartition(":")[2]
        flags = [
            "--metrics-port",
            str(self.metrics_port),
            "--port",
            port,
            "--internal-port",
            str(free_port()),
            "--state-dir",
            str(directory),
        ]
        limits = [
            "--max-num-seqs",
            str(max_num_seqs),
            "--max-num-batched-tokens",
            "8192",
            "--front-processes",
            "1",
            *arguments,
        ]
        log = (directory / "log").open("wb")
        self._scheduler = subprocess.Popen(
            [sys.executable, "-m", "scheduler_svc", *flags, *limits, "--worker-endpoint", endpoint], stderr=log
        )
        worker = ["-m", "benchmarks.front_worker", "--scheduler", endpoint, "--step-seconds", str(step_seconds)]
        self._times = directory / "times"
        worker += ["--max-num-seqs", str(max_num_seqs), "--times", str(self._times)]
        self._worker = subprocess.Popen([sys.executable, *worker])
        self._num_times = 0

    def wait_ready(self) -> None:
        """Until it serves."""
        deadline = time.monotonic() + START_SECONDS
        with Client(self.target) as client:
            while True:
                try:
                    if client.health(timeout=1) is HealthStatus.SERVING:
                        return
                except PagewireError:
                    pass
                if time.monotonic() > deadline:
                    raise SystemExit("the service did not start")
                time.sleep(0.1)

    def step_times(self) -> list[float]:
        """When plans came to the worker and results left it since this was asked last, by the monotonic clock."""
        times = list(map(float, self._times.read_text().split()))
        since, self._num_times = self._num_times, len(times)
        return times[since:]

    @property
    def front(self) -> psutil.Process:
        """The front's process."""
        (child,) = self.scheduler.children()
        return child

    @property
    def scheduler(self) -> psutil.Process:
        """The scheduler's process."""
        return psutil.Process(self._scheduler.pid)

    def stop(self) -> None:
        """Ends everything."""
        for process in (self._scheduler, self._worker):
            process.terminate()
        for process in (self._scheduler, self._worker):
            process.wait(20)


@contextmanager
def service(step_seconds: float, max_num_seqs: int = 256, arguments: Sequence[str] = ()) -> Iterator[Service]:
    """A running service."""
    with tempfile.TemporaryDirectory(prefix="pagewire-front-") as directory:
        running = Service(Path(directory), step_seconds, max_num_seqs, arguments)
        try:
            running.wait_ready()
            yield running
        finally:
            running.stop()


def load(target: str, case: Case) -> list[dict[str, Any]]:
    """Runs the client processes of a case; what each saw."""
    command = [sys.executable, "-m", "benchmarks.front_load", "--target", target, "--tokens", str(case.tokens)]
    command += ["--streams", str(case.streams // CLIENTS), "--max-delay-ms", str(case.max_delay_ms)]
    command += (["--many"] if case.many else []) + (["--times"] if case.step_seconds else [])
    clients = [
        subprocess.Popen([*command, "--name", f"c{number}"], stdout=subprocess.PIPE) for number in range(CLIENTS)
    ]
    return [json.loads(client.communicate()[0]) for client in clients]


def measure(case: Case) -> dict[str, Any]:
    """One row of the table."""
    with service(case.step_seconds) as running:
        before = running.front.cpu_times()
        seen = load(running.target, case)
        after = running.front.cpu_times()
    cpu = after.user + after.system - before.user - before.system
    num_tokens = case.streams * case.tokens
    seconds = max(each["last"] for each in seen) - min(each["first"] for each in seen)
    row = {
        "case": case.name,
        "tokens_per_cpu_second": round(num_tokens / cpu),
        "tokens_per_second": round(num_tokens / seconds),
        "tokens_per_message": round(num_tokens / sum(each["messages"] for each in seen), 1),
        "front_cpu_seconds": round(cpu, 2),
    }
    if case.step_seconds:
        row |= lateness(seen, case.step_seconds) | floor(case)
    return row


def measure_h2load(case: Case) -> dict[str, Any]:
    """A row of the table, tokens as the server counts them."""
    with service(case.step_seconds) as running:
        before = running.front.cpu_times()
        seconds = front_h2load.run(
            running.target, streams=case.streams, tokens=case.tokens, max_delay_ms=case.max_delay_ms
        )
        after = running.front.cpu_times()
        num_tokens = front_h2load.tokens_generated(running.metrics_port)
    if num_tokens != case.streams * case.tokens:
        raise SystemExit(f"{num_tokens} tokens instead of {case.streams * case.tokens}")
    cpu = after.user + after.system - before.user - before.system
    return {
        "case": case.name,
        "tokens_per_cpu_second": round(num_tokens / cpu),
        "tokens_per_second": round(num_tokens / seconds),
        "front_cpu_seconds": round(cpu, 2),
    }


def floor(case: Case) -> dict[str, float]:
    """The same pace by a bare gRPC server."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.front_floor", "--port", str(port), "--streams", str(case.streams)]
    command += ["--steps", str(case.tokens), "--step-seconds", str(case.step_seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        if server.stdout is None or not server.stdout.readline():
            raise SystemExit("the bare server did not start")
        seen = load(f"127.0.0.1:{port}", case)
        cpu_us = float(server.stdout.readline())
    late = lateness(seen, case.step_seconds)
    return {"floor_tokens_per_cpu_second": round(1e6 / cpu_us), **{f"floor_{name}": late[name] for name in late}}


def measure_first(case: Case) -> dict[str, Any]:
    """A row about requests one after the other, by turns in three ways."""
    draw = random.Random(1)
    seconds: dict[str, list[float]] = {"health": [], "generate": [], "many": []}
    with service(0.0) as running, Client(running.target) as client:
        for number in range(WARM_UP + REPEATS):
            prompt = [draw.randrange(256) for _ in range(PROMPT_TOKENS)]
            for name, ask in (("health", ask_health), ("generate", ask_generate), ("many", ask_many)):
                time.sleep(case.pause_seconds)
                began = time.perf_counter()
                ask(client, prompt)
                if number >= WARM_UP:
                    seconds[name].append(time.perf_counter() - began)
                prompt = prompt[1:] + prompt[:1]  # no page of it is cached
    row: dict[str, Any] = {"case": case.name}
    for name, values in seconds.items():
        row |= {f"{name}_least_ms": round(min(values) * 1000, 2)}
        row |= {f"{name}_p50_ms": round(statistics.median(values) * 1000, 2)}
    return row


def ask_health(client: Client, prompt: list[int]) -> None:
    """A call that only the front's own gRPC answers."""
    client.health()


def ask_generate(client: Client, prompt: list[int]) -> None:
    """As far as the first event of a stream."""
    with client.stream(prompt, max_tokens=1, temperature=0) as stream:
        next(stream)


def ask_many(client: Client, prompt: list[int]) -> None:
    """As LLM.generate asks for one prompt."""
    request = pb.GenerateRequest(request_id="1", token_ids={"ids": prompt}, stop={"max_tokens": 1})
    request.output.token_ids = True
    request.output.max_delay_ms = 1000
    for _, outcome in client.run_many([request]):
        if isinstance(outcome, ServerError):
            raise outcome


def lateness(seen: list[dict[str, Any]], step_seconds: float) -> dict[str, float]:
    """How long after the first message of its step each message came, in milliseconds.

    All messages of a step are due at once, so the first one's arrival is the zero: what the others wait for is the
    front (and the clients, which share the machine).
    """
    late: list[float] = []
    start = -1.0
    for arrival in sorted(each for client in seen for each in client["arrivals"]):
        if arrival - start > step_seconds / 2:
            start = arrival
        late.append((arrival - start) * 1000)
    late.sort()
    return {"late_p50_ms": round(statistics.median(late), 2), "late_p99_ms": round(late[int(len(late) * 0.99)], 2)}


def main() -> int:
    """Runs the cases whose names begin with one of the arguments; prints one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="beginnings of names; default: all")
    given = parser.parse_args()
    for case in CASES:
        if not given.cases or case.name.startswith(tuple(given.cases)):
            run = measure_first if case.pause_seconds else measure_h2load if case.h2load else measure
            print(json.dumps(run(case)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
