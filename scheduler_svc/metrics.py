"""The metrics of a deployment, by the names other people's dashboards use.

Everything is counted as plain numbers where it happens (request_metrics, step_metrics, the core's tally) and put under
its name only when somebody asks. Gauges are read from the core at that moment, so they are right also while no step
runs. Labels take a few fixed values; nothing of a request, a tenant or a worker's id becomes one.
"""

from collections.abc import Iterator

from scheduler_svc.core.types import Counts
from scheduler_svc.exposition import Family, counter, gauge, histogram
from scheduler_svc.request_metrics import RequestMetrics
from scheduler_svc.requests import Requests
from scheduler_svc.step_metrics import StepMetrics


class Metrics:
    """Told of everything that is counted; ``families`` is what it comes to."""

    def __init__(self, requests: Requests) -> None:
        self.requests = RequestMetrics()
        self.steps = StepMetrics(requests)

    def families(self, counts: Counts, page_size: int, num_unsettled_tokens: int) -> Iterator[Family]:
        """All metrics. ``num_unsettled_tokens``: output tokens that a stop string may still cut off."""
        yield from _gauges(counts, page_size)
        yield from self._token_counters(counts, num_unsettled_tokens)
        yield from self._other_counters(counts)
        yield from self._histograms()

    def _token_counters(self, counts: Counts, num_unsettled_tokens: int) -> Iterator[Family]:
        requests = self.requests
        num_generated = counts.num_output_tokens - counts.num_cut_tokens - num_unsettled_tokens
        num_overrun = counts.num_wasted_tokens - counts.num_cut_tokens
        wasted = {"overrun": num_overrun, "stop_string": counts.num_cut_tokens}
        yield counter("pagewire_prompt_tokens", "Prompt tokens of requests that began.", requests.num_prompt_tokens)
        yield counter(
            "pagewire_prompt_tokens_cached", "Of those, found in the prefix cache.", requests.num_cached_tokens
        )
        yield counter("pagewire_generation_tokens", "Output tokens, each output's up to its stop.", num_generated)
        yield counter(
            "pagewire_recomputed_tokens",
            "Tokens computed again after preemptions, of requests that ended.",
            requests.num_recomputed_tokens,
        )
        yield counter("pagewire_wasted_tokens", "Tokens computed past an ending and dropped.", wasted, "reason")

    def _other_counters(self, counts: Counts) -> Iterator[Family]:
        yield counter("pagewire_prefix_cache_queries", "Full prompt pages looked for.", counts.num_asked_pages)
        yield counter("pagewire_prefix_cache_hits", "Full prompt pages found.", counts.num_hit_pages)
        yield counter("pagewire_preemptions", "Requests whose pages were taken.", counts.num_preemptions)
        yield counter("pagewire_evicted_pages", "Cached pages forgotten to make room.", counts.num_page_evictions)
        yield Family(
            name="pagewire_requests_total",
            kind="counter",
            text="Requests by how they ended; every request is counted once.",
            values=[
                ({"finish_reason": reason, "code": code}, count)
                for (reason, code), count in self.requests.outcomes.items()
            ],
        )
        yield counter(
            "pagewire_admission_rejections",
            "Requests refused before they began, by the reason their callers were told.",
            self.requests.rejections,
            "reason",
        )

    def _histograms(self) -> Iterator[Family]:
        requests, steps = self.requests, self.steps
        for name, text, of in (
            ("time_to_first_token_seconds", "From a request's arrival to its first token.", steps.first_token),
            ("inter_token_latency_seconds", "From a token to the next one of its output.", steps.inter_token),
            ("time_per_output_token_seconds", "An output's mean time a token behind its first.", requests.per_token),
            ("e2e_request_latency_seconds", "From a request's arrival to its end.", requests.total),
            ("request_queue_time_seconds", "From a request's arrival to its first admission.", requests.queue),
            ("request_prefill_time_seconds", "From its first admission to its first token.", requests.prefill),
            ("request_decode_time_seconds", "From its first token to its last.", requests.decode),
            ("request_prompt_tokens", "Prompt tokens of a request.", requests.prompt_tokens),
            ("request_generation_tokens", "Output tokens of a request.", requests.output_tokens),
            ("step_tokens", "Tokens of a step.", steps.tokens),
            ("cancel_to_free_seconds", "From a cancellation to the freedom of its pages.", steps.cancel_to_free),
            ("stream_stall_seconds", "How long a message waited for its reader, where it had to.", requests.stalls),
        ):
            yield histogram(f"pagewire_{name}", text, of)
        yield histogram("pagewire_step_seconds", "Where the time of steps goes.", steps.seconds, "part")


def _gauges(counts: Counts, page_size: int) -> Iterator[Family]:
    pages = counts.pages.values()
    num_pages = sum(each.num_pages for each in pages)
    num_held = sum(each.num_held for each in pages)
    waiting = {
        "turn": counts.num_waiting - counts.num_unplaced - counts.num_parked,
        "page_claimed": counts.num_parked,
        "no_worker": counts.num_unplaced,
    }
    yield gauge("pagewire_num_requests_running", "Outputs that hold pages.", counts.num_running)
    yield gauge("pagewire_num_requests_waiting", "Outputs that wait, by what for.", waiting, "reason")
    yield gauge(
        "pagewire_kv_cache_usage_perc", "Share of pages held by requests and pins.", num_held / max(1, num_pages)
    )
    num_pinned = sum(each.num_pinned for each in pages)
    yield gauge("pagewire_kv_cache_pinned_perc", "Of them, those that pins keep.", num_pinned / max(1, num_pages))
    yield gauge("pagewire_workers", "Workers that have joined.", counts.num_workers)
    yield Family(
        name="pagewire_cache_config_info",
        kind="gauge",
        text="How the KV cache is laid out.",
        values=[({"page_size": str(page_size), "num_pages": str(num_pages)}, 1)] if num_pages else [],
    )
    yield gauge(
        "pagewire_page_waste_ratio",
        "Share of the slots of held pages that hold no token of a running request.",
        counts.page_waste_ratio,
    )
