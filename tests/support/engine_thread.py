"""The scheduler's engine on a thread, with short patience, its books checked after every round."""

import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from support.conditions import wait_until

from scheduler_svc.core.types import CoreConfig, Counts
from scheduler_svc.engine import Engine, EngineSettings

HASH_KEY = bytes(range(32))


class EngineThread:
    """``with EngineThread() as engine``; fields of CoreConfig and EngineSettings by name."""

    def __init__(self, *, check: bool = True, **settings: Any) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="pagewire-test-"))
        self.worker_endpoint = f"ipc://{self.directory}/worker.sock"
        self.front_endpoint = f"ipc://{self.directory}/front.sock"
        core_names = CoreConfig.__dataclass_fields__.keys()
        core = {name: settings.pop(name) for name in list(settings) if name in core_names}
        core = {"max_num_batched_tokens": 1024, "max_num_seqs": 256, "worker_lost_seconds": 2.0, **core}
        patience = {"worker_timeout_seconds": 1.0, "front_timeout_seconds": 1.0, "heartbeat_seconds": 0.05, **settings}
        self._settings = EngineSettings(
            worker_endpoint=self.worker_endpoint,
            front_endpoint=self.front_endpoint,
            hash_key=HASH_KEY,
            core=CoreConfig(**core),
            **patience,
        )
        self.error: BaseException | None = None
        self._check = check
        self._calls: list[Callable[[], None]] = []
        self._stopping = False
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def __enter__(self) -> "EngineThread":
        self._wake, self._wake_writer = os.pipe()
        self._thread.start()
        assert self._ready.wait(10)
        self._raise()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._stopping = True
        os.write(self._wake_writer, b"x")
        self._thread.join(20)
        os.close(self._wake)
        os.close(self._wake_writer)
        shutil.rmtree(self.directory, ignore_errors=True)
        if kind is None:
            self._raise()

    def call(self, function: Callable[[Engine], Any]) -> Any:
        """Runs ``function`` between two rounds of the loop and returns what it returns."""
        results: list[Any] = []
        done = threading.Event()

        def run() -> None:
            try:
                results.append(function(self._engine))
            finally:
                done.set()

        self._calls.append(run)
        os.write(self._wake_writer, b"x")
        while not done.wait(0.5):
            self._raise()
            assert self._thread.is_alive(), "the engine has ended"
        return results[0]

    def counts(self) -> Counts:
        counts: Counts = self.call(lambda engine: engine.core.counts())
        return counts

    def faults(self) -> int:
        return int(self.call(lambda engine: engine.num_link_faults))

    def wait_clean(self, seconds: float = 10.0) -> None:
        """Every page is free or an unreferenced cached one, and nobody remembers a live request."""
        wait_until(lambda: self.call(_is_clean), "the page ledger is back to zero", seconds)

    def _run(self) -> None:
        try:
            self._engine = Engine(self._settings)
            self._engine.watch(self._wake, lambda: os.read(self._wake, 4096))
            self._ready.set()
            self._engine.run(self._between_rounds)
        except BaseException as error:
            self.error = error
        finally:
            self._ready.set()
            if hasattr(self, "_engine"):
                self._engine.close("the test is over")

    def _between_rounds(self) -> bool:
        if self._check:
            self._engine.core.check_invariants()
        while self._calls:
            self._calls.pop(0)()
        return self._stopping or self._engine.is_drained

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error


def _is_clean(engine: Engine) -> bool:
    counts = engine.core.counts()
    pages = counts.pages.values()
    return (
        len(engine.desk.requests) == 0
        and counts.num_running == counts.num_waiting == 0
        and all(each.num_held == 0 and each.num_free + each.num_cached == each.num_pages for each in pages)
    )
