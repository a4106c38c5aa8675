"""Metrics through the whole product: what a Prometheus sees against what callers were told (MET-01, MET-02)."""

import random
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from pagewire_client import (
    Client,
    DeadlineExceededError,
    Generation,
    InvalidRequestError,
    NotFoundError,
    PagewireError,
    RequestCancelledError,
)
from support.conditions import wait_until
from support.scrape import Scrape, scrape
from support.scripted_rows import Limits
from support.scripted_stack import PROBE, ScriptedStack, first_ids

from scheduler_svc.metrics_server import MetricsPortError, MetricsServer

GAUGES = {
    *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "workers", "cache_config_info"),
    *("page_waste_ratio", "kv_cache_pinned_perc"),
}
COUNTERS = {
    *("prompt_tokens", "prompt_tokens_cached", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits"),
    *("preemptions", "evicted_pages", "recomputed_tokens", "wasted_tokens", "requests", "admission_rejections"),
}
HISTOGRAMS = {
    *("time_to_first_token_seconds", "inter_token_latency_seconds", "time_per_output_token_seconds"),
    *("e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds"),
    *("request_decode_time_seconds", "request_prompt_tokens", "request_generation_tokens", "step_tokens"),
    *("step_seconds", "cancel_to_free_seconds", "stream_stall_seconds"),
}
LABELS = {
    "num_requests_waiting": {"reason"},
    "cache_config_info": {"page_size", "num_pages"},
    "wasted_tokens": {"reason"},
    "requests": {"finish_reason", "code"},
    "admission_rejections": {"reason"},
    "step_seconds": {"part"},
}
ENDING = [40, 1]
"""A prompt whose output is ten tokens and an end."""
LATE_SECONDS = 0.8
"""Enough to reach the scheduler on a busy machine, too little for the longest output."""
LONG = [41, *range(60)]


@pytest.fixture
def stack() -> Iterator[ScriptedStack]:
    with ScriptedStack() as running:
        running.outputs[tuple(ENDING)] = list(b"0123456789")
        yield running


def scraped(stack: ScriptedStack) -> Scrape:
    return scrape(stack.scheduler.metrics_port)


def num_settled(found: Scrape) -> float:
    return found.total("requests_total")


def wait_settled(stack: ScriptedStack, count: float) -> Scrape:
    """The metrics once so many requests are in them; fronts tell theirs with their heartbeats."""
    wait_until(lambda: num_settled(scraped(stack)) >= count, f"{count} requests are counted", 20)
    return scraped(stack)


def test_names_types_and_labels_are_those_that_are_documented(stack: ScriptedStack) -> None:
    with stack.worker(Limits()):
        stack.probe()
        with pytest.raises(InvalidRequestError):
            stack.client.generate(PROBE, temperature=-1)
        found = wait_settled(stack, 2)
    kinds = dict.fromkeys(GAUGES, "gauge") | dict.fromkeys(COUNTERS, "counter") | dict.fromkeys(HISTOGRAMS, "histogram")
    assert found.types == {f"pagewire_{name}": kind for name, kind in kinds.items()}
    labels: dict[str, set[str]] = {}
    for name, pairs in found.samples:
        stem = name.removeprefix("pagewire_").removesuffix("_total")
        stem = next((each for each in HISTOGRAMS if stem.startswith(each)), stem)
        labels.setdefault(stem, set()).update(label for label, _ in pairs if label != "le")
    assert {name: found for name, found in labels.items() if found} == LABELS


def test_the_port_answers_metrics_and_survives_anything_else(stack: ScriptedStack) -> None:
    place = ("127.0.0.1", stack.scheduler.metrics_port)
    silent = [socket.create_connection(place, timeout=5) for _ in range(40)]
    for asked, answered in (
        (b"GET /other HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"200"),
        (b"\xff\x00\r\n\r\n", b"404"),
        (b"x" * 9000, b""),
    ):
        with socket.create_connection(place, timeout=5) as peer:
            peer.sendall(asked)
            try:
                assert peer.recv(4096)[9:12] == answered
            except ConnectionResetError:
                assert answered == b""
    for peer in silent:
        peer.close()
    assert scraped(stack).types


def test_values_of_a_scripted_run(stack: ScriptedStack) -> None:
    before = scraped(stack)

    def grown(name: str, **labels: str) -> float:
        return found.value(name, **labels) - before.value(name, **labels)

    with stack.worker(Limits()) as worker:
        answers = [stack.client.generate(ENDING, max_tokens=20) for _ in range(3)]
        answers += [stack.client.generate(LONG, max_tokens=5) for _ in range(2)]
        answers.append(stack.client.generate(LONG, n=3, max_tokens=6, bypass_prefix_cache=True))
        found = wait_settled(stack, num_settled(before) + 6)
        assert found.value("workers") == 1
        assert found.value("cache_config_info", page_size="16", num_pages=str(worker.options.limits.num_pages)) == 1
    usages = [answer.usage for answer in answers]
    assert grown("prompt_tokens_total") == sum(usage.prompt_tokens for usage in usages) == 3 * 2 + 3 * 61
    assert grown("prompt_tokens_cached_total") == sum(usage.cached_tokens for usage in usages) == 48
    assert grown("generation_tokens_total") == sum(usage.output_tokens for usage in usages) == 3 * 11 + 2 * 5 + 18
    assert grown("prefix_cache_queries_total") == 6
    assert grown("prefix_cache_hits_total") == 3
    assert grown("requests_total", finish_reason="stop", code="OK") == 3
    assert grown("requests_total", finish_reason="length", code="OK") == 3
    assert grown("time_to_first_token_seconds_count") == 6
    assert grown("inter_token_latency_seconds_count") == grown("generation_tokens_total") - 5 - 3
    assert grown("e2e_request_latency_seconds_count") == 6
    assert grown("e2e_request_latency_seconds_sum") == pytest.approx(
        sum(answer.summary.timings.total_seconds for answer in answers), abs=1e-3
    )
    assert grown("request_generation_tokens_bucket", le="16") == 5
    assert grown("step_seconds_count", part="plan") == grown("step_tokens_count") >= 30
    assert grown("step_seconds_sum", part="worker") == pytest.approx(0.001 * grown("step_tokens_count"), rel=0.1)


def test_tokens_behind_a_stop_string_are_not_generated_but_wasted(stack: ScriptedStack) -> None:
    before = scraped(stack)
    with stack.worker(Limits(), step_seconds=0.002):
        answer = stack.client.generate([60, 2], max_tokens=200, stop=["nothing of the kind"])
        found = wait_settled(stack, num_settled(before) + 1)
        num_generated = found.value("generation_tokens_total") - before.value("generation_tokens_total")
        assert num_generated == answer.usage.output_tokens == 200
        stack.outputs[(61, 1)] = list(b"abcdefgh" * 20)
        answer = stack.client.generate([61, 1], max_tokens=200, stop=["cd"])
        assert answer.usage.output_tokens == 4
        found = wait_settled(stack, num_settled(before) + 2)
    assert found.value("generation_tokens_total") - before.value("generation_tokens_total") == 204


def test_met_01_gauges_go_back_to_zero_when_everything_was_aborted(stack: ScriptedStack) -> None:
    """By cancelling, by the client's death and by the worker's, while no step runs."""
    with stack.worker(Limits(max_num_seqs=8), steps_before_hold=3) as worker:
        clients = [stack.connect() for _ in range(3)]
        streams = [client.stream([50, place], max_tokens=100) for place in range(5) for client in clients]
        wait_until(
            lambda: _num_live(scraped(stack)) == 15 and len(worker.plans) == 3,
            "some run and some wait",
        )
        assert scraped(stack).value("kv_cache_usage_perc") > 0
        for stream in streams[:5]:
            stream.cancel()
        for client in clients:
            client.close()
        worker.options.steps_before_hold = None
        wait_until(lambda: _is_idle(scraped(stack)), "everything is back to zero", 3)
    with stack.worker(Limits()):
        stack.probe()
        found = scraped(stack)
    num_ended = found.value("e2e_request_latency_seconds_count")
    assert found.total("requests_total") == num_ended + found.total("admission_rejections_total")


def _num_live(found: Scrape) -> float:
    running, waiting = found.value("num_requests_running"), found.value("num_requests_waiting", reason="turn")
    return running + waiting if running and waiting else 0


def _is_idle(found: Scrape) -> bool:
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    return all(found.total(name) == 0 for name in names)


class Book:
    """What callers were told, one entry a request."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.answers: list[Generation] = []

    def run(self, client: Client, number: int) -> None:
        """One request of some kind; notes what became of it."""
        kinds = (self._plain, self._plain, self._stopped, self._left, self._late, self._wrong, self._unknown)
        kinds[number % len(kinds)](client, number)

    def _plain(self, client: Client, number: int) -> None:
        prompt, n = (ENDING, 1) if number % 2 else ([*LONG, number % 5], 1 + number % 3)
        self._note(client.generate(prompt, max_tokens=1 + number % 30, n=n))

    def _stopped(self, client: Client, number: int) -> None:
        self._note(client.generate(ENDING, max_tokens=50, stop=["34"]))

    def _left(self, client: Client, number: int) -> None:
        stream = client.stream([42, number], max_tokens=1000, token_ids=True)
        first_ids(stream)
        stream.cancel()
        with pytest.raises(RequestCancelledError):
            stream.join()
        self.outcomes["cancelled", "CANCELLED"] += 1

    def _late(self, client: Client, number: int) -> None:
        with pytest.raises(DeadlineExceededError):
            client.generate([43, number], max_tokens=100_000_000, timeout=LATE_SECONDS, ignore_eos=True)
        self.outcomes["deadline", "DEADLINE_EXCEEDED"] += 1

    def _wrong(self, client: Client, number: int) -> None:
        with pytest.raises(InvalidRequestError):
            client.generate(ENDING, top_p=7)
        self.outcomes["rejected", "INVALID_ARGUMENT"] += 1

    def _unknown(self, client: Client, number: int) -> None:
        with pytest.raises(NotFoundError):
            client.generate(ENDING, model="another")
        self.outcomes["rejected", "NOT_FOUND"] += 1

    def _note(self, answer: Generation) -> None:
        self.answers.append(answer)
        self.outcomes[answer.outputs[0].finish_reason.name.lower(), "OK"] += 1


def test_met_02_every_request_has_one_outcome_and_counters_only_grow(stack: ScriptedStack) -> None:
    """Stop, length, cancel, deadline, invalid, preempted and recomputed, n, hits, and a worker that dies meanwhile."""
    book, series, before = Book(), [], scraped(stack)
    limits = Limits(num_pages=24, max_num_seqs=8)
    with ThreadPoolExecutor(8) as pool, stack.worker(limits, step_seconds=0.005):
        numbers = list(range(70))
        random.Random(5).shuffle(numbers)
        with stack.worker(limits, step_seconds=0.005):
            runs = [pool.submit(book.run, stack.client, number) for number in numbers[:35]]
            for run in runs:
                run.result(30)
                series.append(scraped(stack))
        runs = [pool.submit(book.run, stack.client, number) for number in numbers[35:]]
        for run in runs:
            run.result(30)
            series.append(scraped(stack))
        stack.wait_idle()
        series.append(wait_settled(stack, num_settled(before) + len(numbers)))
    found = series[-1]
    told = {
        (dict(pairs)["finish_reason"], dict(pairs)["code"]) for name, pairs in found.samples if "requests_tot" in name
    }
    grown = {
        pair: found.value("requests_total", finish_reason=pair[0], code=pair[1])
        - before.value("requests_total", finish_reason=pair[0], code=pair[1])
        for pair in told
    }
    # A caller's deadline is a little earlier than the server's, by the time that its call took to come: on a busy
    # machine it may have hung up before the server's passed, and counts as one that cancelled.
    late, left = ("deadline", "DEADLINE_EXCEEDED"), ("cancelled", "CANCELLED")
    num_hung_up = book.outcomes[late] - int(grown[late])
    assert 0 <= num_hung_up <= book.outcomes[late]
    book.outcomes.update({late: -num_hung_up, left: num_hung_up})
    assert {pair: count for pair, count in grown.items() if count} == {**+book.outcomes}
    _check_growth(series)


def _check_growth(series: list[Scrape]) -> None:
    for earlier, later in pairwise(series):
        for (name, labels), value in earlier.samples.items():
            if name.endswith(("_total", "_count", "_bucket", "_sum")):
                assert later.samples[name, labels] >= value >= 0, name


def test_counters_survive_the_loss_of_a_worker(stack: ScriptedStack) -> None:
    limits = Limits(num_pages=8)
    with stack.worker(limits):
        for place in range(8):
            stack.client.generate([place, *range(60)], max_tokens=5)
        before = scraped(stack)
    assert before.value("evicted_pages_total") > 0
    with stack.worker(limits):
        after = scraped(stack)
        _check_growth([before, after])
        assert after.value("evicted_pages_total") == before.value("evicted_pages_total")


def test_labels_stay_few_whatever_callers_send(stack: ScriptedStack) -> None:
    before = scraped(stack)
    with stack.worker(Limits()):
        for place in range(30):
            with pytest.raises(PagewireError):
                stack.client.generate([1], model=f"model-{place}", request_id=f"id-{place}")
        found = wait_settled(stack, num_settled(before) + 30)
    assert len(found.samples) < 500
    assert "model-" not in found.text
    assert "id-" not in found.text


@pytest.mark.parametrize(("host", "flag"), [("127.0.0.1", "--metrics-port"), ("no such host", "--metrics-host")])
def test_a_port_that_cannot_be_had_is_named_by_its_flag(host: str, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MetricsPortError, match=rf"^{flag} ({port}|{host}): "):
            MetricsServer(host, port, bytes, watch=lambda number, call: None, unwatch=lambda number: None, clock=float)
