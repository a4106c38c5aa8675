"""The product without a model: the scheduler process with its fronts, a scripted worker of the test, a real client.

Requests go the whole way over gRPC and ZeroMQ; the worker's script says every token, and the worker keeps every plan.
"""

from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from pagewire_client import Client, Delta, HealthStatus, Load, PagewireError, UnavailableError
from pagewire_client.client import Stream
from support.conditions import wait_until
from support.scheduler_process import SchedulerProcess
from support.scripted_rows import Limits
from support.scripted_worker import ScriptedWorker, prepared_script

PROBE = [1, 2, 3]
PROBE_ANSWER = "known"


def counting(prompt: tuple[int, ...], position: int) -> int:
    """Tells whose token it is and the how manieth; the same number comes again after 256 tokens only."""
    return (37 * sum(prompt) + 11 * len(prompt) + position) % 256


def counted(prompt: list[int], count: int) -> tuple[int, ...]:
    """The first tokens of an output that counts."""
    return tuple(counting(tuple(prompt), position) for position in range(count))


class ScriptedStack:
    """``with ScriptedStack() as stack``: listening; ``worker`` adds a worker and waits until it serves.

    ``outputs`` prepares answers of prompts (EOS follows); other prompts count for ever. Clients show ``token``.
    """

    def __init__(self, *flags: str, token: str | None = None, **process: Any) -> None:
        self.scheduler = SchedulerProcess(*flags, **process)
        self._token = token
        self.outputs: dict[tuple[int, ...], list[int]] = {tuple(PROBE): list(PROBE_ANSWER.encode())}
        self._clients: list[Client] = []
        prepared = prepared_script(self.outputs)
        self.script: Callable[[tuple[int, ...], int, int, int], int] = lambda prompt, position, index, seed: (
            prepared(prompt, position, index, seed) if prompt in self.outputs else counting(prompt, position)
        )

    def __enter__(self) -> "ScriptedStack":
        self.scheduler.__enter__()
        self.client = self.connect()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        for client in self._clients:
            client.close()
        if value is not None:
            value.add_note(self.scheduler.log_path.read_text()[-4000:])
        self.scheduler.close()

    def connect(self, token: str | None = None) -> Client:
        """One more client with a connection of its own."""
        scheduler, shown = self.scheduler, token or self._token
        client = Client(scheduler.target, internal_target=scheduler.internal_target, timeout=30, token=shown)
        self._clients.append(client)
        return client

    @contextmanager
    def worker(self, limits: Limits | None = None, **options: Any) -> Iterator[ScriptedWorker]:
        """A worker for a while; leaves with a goodbye. Fails if it saw a wrong page, row or token."""
        before = self.load().num_workers
        worker = ScriptedWorker(
            self.scheduler.worker_endpoint,
            limits=limits or Limits(),
            script=options.pop("script", self.script),
            **options,
        )
        worker.start()
        try:
            self.wait_workers(before + 1)
            yield worker
            if worker.error is not None:
                raise worker.error
            assert worker.rows.violations == []
        finally:
            worker.leave()
        self.wait_workers(before)

    def wait_workers(self, count: int, seconds: float = 10.0) -> None:
        """Until so many workers are known and health says what follows from it."""
        status = HealthStatus.SERVING if count else HealthStatus.NOT_SERVING
        wait_until(lambda: self.load().num_workers == count, f"{count} workers", seconds)
        wait_until(lambda: self.health() is status, f"health is {status.name}", seconds)

    def health(self) -> HealthStatus | None:
        """None while nothing answers."""
        try:
            return self.client.health(timeout=5)
        except UnavailableError:
            return None

    def load(self) -> Load:
        return self.client.load(timeout=10)

    def wait_idle(self, seconds: float = 5.0) -> Load:
        """The ledger: nothing runs or waits, and every page is free or an unreferenced cached one."""

        seen: list[Load] = []

        def is_idle() -> bool:
            seen.append(self.load())
            return seen[-1].num_requests_running + seen[-1].num_requests_waiting + seen[-1].num_held_pages == 0

        wait_until(is_idle, "nothing running, nothing waiting, no page held", seconds)
        load = seen[-1]
        assert load.num_free_pages + load.num_cached_pages == load.num_pages
        return load

    def probe(self, client: Client | None = None) -> None:
        """A fixed request ends with its known answer within 5 s."""
        answer = (client or self.client).generate(PROBE, timeout=5)
        assert answer.text == PROBE_ANSWER


def begun_prompts(worker: ScriptedWorker, since: int = 0) -> list[tuple[int, ...]]:
    """Prompts of the rows that began in the plans from number ``since`` on."""
    found = []
    for recorded in worker.plans[since:]:
        new = recorded.plan.new_rows
        token_ids = ints(new.token_ids)
        for num_ids, num_prompt in zip(ints(new.num_token_ids), ints(new.num_prompt_tokens), strict=True):
            found.append(tuple(token_ids[:num_prompt]))
            del token_ids[:num_ids]
    return found


def ints(column: bytes) -> "array[int]":
    """Values of an int32 column."""
    values = array("i")
    values.frombytes(column)
    return values


def first_ids(stream: Stream, count: int = 1) -> tuple[int, ...]:
    """Ids of the first messages, at least ``count``."""
    ids: tuple[int, ...] = ()
    while len(ids) < count:
        event = next(stream)
        ids += event.token_ids if isinstance(event, Delta) else ()
    return ids


def outcome(stream: Stream) -> tuple[int, ...] | PagewireError:
    """The ids of a stream's first output once all is read, or the error it ends with."""
    try:
        return stream.join().outputs[0].token_ids
    except PagewireError as error:
        return error
