"""Workers that die or hang while streams run: they go on with the reference's tokens, or end with UNAVAILABLE."""

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pagewire_client import Client, Delta, Event, HealthStatus, UnavailableError
from pagewire_client.client import Stream
from pagewire_client.options import GenerateOptions
from support.conditions import wait_until
from support.reference_outputs import Reference
from support.stack import ONE_THREAD, Stack, attached_log

WORKER_TIMEOUT_SECONDS = 1.0
WORKER_LOST_SECONDS = 20.0
"""Longer than a worker takes to start on a busy machine."""


@pytest.fixture(scope="module")
def patient(gguf: Path) -> Iterator[Stack]:
    """A stack that soon notices a silent worker and long waits for another."""
    lost = ("--worker-lost-seconds", str(WORKER_LOST_SECONDS))
    silent = ("--worker-timeout-seconds", str(WORKER_TIMEOUT_SECONDS))
    with Stack(gguf, scheduler=(*lost, *silent), worker=ONE_THREAD) as stack:
        yield stack


@pytest.fixture(scope="module")
def hasty(gguf: Path) -> Iterator[Stack]:
    """The same, but requests hardly wait for another worker."""
    limits = ("--worker-lost-seconds", "0.5", "--worker-timeout-seconds", str(WORKER_TIMEOUT_SECONDS))
    with Stack(gguf, scheduler=limits, worker=ONE_THREAD) as stack:
        yield stack


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that gets SIGSTOP, and SIGCONT at the end of the block if it still lives."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


class RunningStreams:
    """The long cases as streams, each of which has received a few tokens."""

    def __init__(self, client: Client, references: list[Reference]) -> None:
        self.references = references
        self.streams = [self._open(client, reference) for reference in references]
        self.ids: list[list[int]] = [[] for _ in references]
        for stream, ids in zip(self.streams, self.ids, strict=True):
            while len(ids) < 3:
                event = next(stream)
                ids += event.token_ids if isinstance(event, Delta) else ()

    def assert_all_end_as_the_references(self) -> None:
        """Reads the streams to their ends."""
        for stream, ids, reference in zip(self.streams, self.ids, self.references, strict=True):
            _read_all(stream, ids)
            assert tuple(ids) == reference.output_ids

    def assert_all_unavailable(self) -> None:
        """Every stream ends with UNAVAILABLE and a delay to retry after; what came before was right."""
        for stream, ids, reference in zip(self.streams, self.ids, self.references, strict=True):
            with pytest.raises(UnavailableError) as caught:
                _read_all(stream, ids)
            assert caught.value.retry_delay_seconds is not None
            assert tuple(ids) == reference.output_ids[: len(ids)]

    @staticmethod
    def _open(client: Client, reference: Reference) -> Stream:
        case = reference.case
        if case.chat:
            messages = [{"role": role, "content": content} for role, content in case.chat]
            return client.stream_chat(messages, temperature=0.0, max_tokens=case.max_tokens, token_ids=True)
        return client.stream(case.text, temperature=0.0, max_tokens=case.max_tokens, token_ids=True)


def _read_all(stream: Stream, ids: list[int]) -> None:
    """Adds the ids of a stream to ``ids``, up to its end or error."""
    for event in stream:
        ids += event.token_ids if isinstance(event, Delta) else ()


def test_a_killed_worker_that_is_replaced(patient: Stack, long_reference: list[Reference]) -> None:
    patient.ensure_one_worker()
    with attached_log(patient):
        before = patient.load().num_preemptions
        running = RunningStreams(patient.client, long_reference)
        patient.kill_worker()
        patient.start_worker()
        running.assert_all_end_as_the_references()
        load = patient.await_idle()
        assert load.num_preemptions == before + len(long_reference)
        assert patient.health() is HealthStatus.SERVING


def test_a_form_goes_on_at_another_worker(patient: Stack) -> None:
    patient.ensure_one_worker()
    expression = r'\{"name": "[A-Z][a-z]{2,8}", "words": \["[a-z ]{10,20}"\]\}'
    wanted: GenerateOptions = {"regex": expression, "temperature": 1.0, "seed": 11, "max_tokens": 80, "n": 2}
    expected = [output.text for output in patient.client.generate("A person, as JSON:", **wanted).outputs]
    assert all(re.fullmatch(expression, text) for text in expected)
    with attached_log(patient):
        stream = patient.client.stream("A person, as JSON:", **wanted)
        texts = ["", ""]
        while not all(texts):
            _add_text(next(stream), texts)
        patient.kill_worker()
        patient.start_worker()
        for event in stream:
            _add_text(event, texts)
        assert texts == expected
        patient.await_idle()


def _add_text(event: Event, texts: list[str]) -> None:
    if isinstance(event, Delta):
        texts[event.index] += event.text


def test_a_stopped_worker_that_goes_on_soon(patient: Stack, long_reference: list[Reference]) -> None:
    """Shorter than the time-out: nothing is given up, nothing is computed again."""
    patient.ensure_one_worker()
    with attached_log(patient):
        before = patient.load()
        running = RunningStreams(patient.client, long_reference)
        with stopped(patient.workers[0].pid):
            # Two steps are in flight; what was answered before the signal may still be on its way.
            until = time.monotonic() + WORKER_TIMEOUT_SECONDS / 3
            wait_until(lambda: time.monotonic() > until, "a third of the time-out passed")
        running.assert_all_end_as_the_references()
        after = patient.await_idle()
        assert after.num_preemptions == before.num_preemptions


def test_a_stopped_worker_that_goes_on_after_it_was_given_up(patient: Stack, long_reference: list[Reference]) -> None:
    """What it still says belongs to an old epoch: it joins anew and its requests are computed again."""
    patient.ensure_one_worker()
    with attached_log(patient):
        running = RunningStreams(patient.client, long_reference)
        with stopped(patient.workers[0].pid):
            wait_until(lambda: patient.health() is HealthStatus.NOT_SERVING, "the worker is given up", 15)
        running.assert_all_end_as_the_references()
        patient.await_idle()
        assert patient.health() is HealthStatus.SERVING


def test_a_worker_stopped_for_ever_that_is_replaced(patient: Stack, long_reference: list[Reference]) -> None:
    patient.ensure_one_worker()
    with attached_log(patient):
        running = RunningStreams(patient.client, long_reference)
        stuck = patient.workers[0]
        with stopped(stuck.pid):
            patient.start_worker()
            running.assert_all_end_as_the_references()
            patient.await_idle()
            stuck.kill()
            assert stuck.wait(5)


def test_a_scheduler_that_is_replaced_finds_the_same_worker_and_its_warm_cache(patient: Stack) -> None:
    patient.ensure_one_worker()
    with attached_log(patient):
        prompt = [number % 900 + 5 for number in range(200)]
        first = patient.client.generate(prompt, temperature=0.0, max_tokens=24, token_ids=True)
        pid = patient.workers[0].pid
        for number in (signal.SIGKILL, signal.SIGTERM):
            patient.replace_scheduler(number)
            again = patient.client.generate(prompt, temperature=0.0, max_tokens=24, token_ids=True)
            assert patient.workers[0].pid == pid
            assert again.usage.cached_tokens >= 192
            assert again.outputs[0].token_ids == first.outputs[0].token_ids


def test_a_killed_worker_that_is_not_replaced(hasty: Stack, long_reference: list[Reference]) -> None:
    hasty.ensure_one_worker()
    with attached_log(hasty):
        running = RunningStreams(hasty.client, long_reference)
        hasty.kill_worker()
        running.assert_all_unavailable()
        assert hasty.health() is HealthStatus.NOT_SERVING
        load = hasty.load()
        assert (load.num_workers, load.num_requests_running, load.num_requests_waiting) == (0, 0, 0)
        with pytest.raises(UnavailableError) as caught:
            hasty.client.generate("x", temperature=0.0, max_tokens=1, timeout=30)
        assert caught.value.retry_delay_seconds is not None


def test_a_worker_stopped_for_ever(hasty: Stack, long_reference: list[Reference]) -> None:
    hasty.ensure_one_worker()
    with attached_log(hasty):
        running = RunningStreams(hasty.client, long_reference)
        with stopped(hasty.workers[0].pid):
            began = time.monotonic()
            running.assert_all_unavailable()
            assert time.monotonic() - began < 15
            assert hasty.health() is HealthStatus.NOT_SERVING
        hasty.await_serving()
        hasty.await_idle()
