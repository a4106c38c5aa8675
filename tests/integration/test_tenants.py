"""What one tenant can learn of another's prompts: nothing, whatever it tries."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from pagewire_client import Admitted, Client, Summary
from support.conditions import wait_until
from support.scripted_rows import Limits
from support.scripted_stack import ScriptedStack, ints
from support.scripted_worker import ScriptedWorker

PROMPT = list(range(1, 129))


@pytest.fixture(scope="module")
def stack() -> Iterator[ScriptedStack]:
    with ScriptedStack("--trust-tenant-metadata") as running:
        yield running


@pytest.fixture
def worker(stack: ScriptedStack) -> Iterator[ScriptedWorker]:
    with stack.worker(Limits(num_pages=200)) as running:
        yield running


def cached_tokens(stack: ScriptedStack, tenant: str, **options: Any) -> int:
    """Of the prompt, as told at its admission and at its end."""
    metadata = (("x-pagewire-tenant", tenant),) if tenant else ()
    with Client(stack.scheduler.target, timeout=20, metadata=metadata) as client:
        events = list(client.stream(PROMPT, max_tokens=2, progress_events=True, **options))
    admitted = [event.cached_tokens for event in events if isinstance(event, Admitted)]
    ended = [event.usage.cached_tokens for event in events if isinstance(event, Summary)]
    assert admitted == ended
    return ended[0]


def test_a_tenants_prefix_is_cold_for_every_other(stack: ScriptedStack, worker: ScriptedWorker) -> None:
    assert cached_tokens(stack, "a") == 0
    warm = cached_tokens(stack, "a")
    assert warm >= len(PROMPT) - worker.options.limits.page_size
    for salt in ("", "a", "1:a", "a\0", "\x01\0\0\0\0\0\0\0a"):
        for tenant in ("b", "aa", "A", ""):
            assert cached_tokens(stack, tenant, cache_salt=salt) == 0, (tenant, salt)
    assert cached_tokens(stack, "b") == cached_tokens(stack, "a") == warm
    # The worker itself was told so: what others had computed was computed again, whole.
    begun = [count for plan in worker.plans for count in ints(plan.plan.new_rows.num_cached_tokens)]
    assert sorted(begun) == [0] * 21 + [warm] * 3


def test_names_of_pages_have_nothing_in_common(stack: ScriptedStack, worker: ScriptedWorker) -> None:
    num_pages = len(PROMPT) // worker.options.limits.page_size
    named = worker.rows.named
    names: list[set[bytes]] = []
    for tenant in ("c", "d"):
        before = len(named)
        known = set(named.values())
        assert cached_tokens(stack, tenant) == 0
        assert cached_tokens(stack, tenant) > 0
        # With a plan, or by themselves once nothing is left to do.
        wait_until(partial(lambda count: len(named) >= count, before + num_pages), "the pages are named")
        names.append(set(named.values()) - known)
    assert not names[0] & names[1]
