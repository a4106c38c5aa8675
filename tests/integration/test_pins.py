"""Pins and quotes through the whole product: clients and commands, a front, the scheduler, a worker."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pagewire_client import (
    AsyncClient,
    Client,
    DeadlineExceededError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    UnavailableError,
)
from pagewire_client.cli.app import app
from support.conditions import wait_until
from support.scripted_rows import Limits
from support.scripted_stack import ScriptedStack
from typer.testing import CliRunner

LIMITS = Limits(num_pages=32, page_size=16)
PROMPT = [*range(40)]


@pytest.fixture(scope="module")
def stack() -> Iterator[ScriptedStack]:
    with ScriptedStack("--trust-tenant-metadata") as running:
        yield running


def crowd(client: Client) -> None:
    """Prompts of more pages than there are."""
    for number in range(6):
        client.generate([200 + number] * 100, max_tokens=1)


def test_a_pinned_prefix_stays_until_it_is_let_go(stack: ScriptedStack) -> None:
    client = stack.client
    with stack.worker(LIMITS):
        pin = client.pin_prefix(PROMPT, ttl_seconds=60)
        assert pin.num_pages == 2
        assert 0 < pin.ttl_seconds <= 60
        again = client.pin_prefix(PROMPT, ttl_seconds=60)
        assert again.pin_id != pin.pin_id
        assert [(each.pin_id, each.num_pages) for each in client.pins()] == [(pin.pin_id, 2), (again.pin_id, 2)]
        crowd(client)
        assert client.generate(PROMPT, max_tokens=1).usage.cached_tokens == 32
        client.unpin_prefix(pin.pin_id)
        client.unpin_prefix(again.pin_id)
        with pytest.raises(NotFoundError) as missing:
            client.unpin_prefix(pin.pin_id)
        assert missing.value.reason == "PIN_NOT_FOUND"
        crowd(client)
        assert client.generate(PROMPT, max_tokens=1).usage.cached_tokens == 0
        stack.wait_idle()


def test_a_pin_ends_with_its_time(stack: ScriptedStack) -> None:
    with stack.worker(LIMITS):
        assert stack.client.pin_prefix(PROMPT, ttl_seconds=0.3).pin_id
        wait_until(lambda: not stack.client.pins(), "its time is over")
        wait_until(lambda: stack.load().num_held_pages == 0, "its pages are free")


def test_a_pin_outlives_its_worker(stack: ScriptedStack) -> None:
    with stack.worker(LIMITS):
        pin = stack.client.pin_prefix(PROMPT, ttl_seconds=60)
    assert [each.num_pages for each in stack.client.pins()] == [0]
    with pytest.raises(UnavailableError):
        stack.client.pin_prefix(PROMPT, ttl_seconds=60)
    with stack.worker(LIMITS):
        stack.client.generate(PROMPT, max_tokens=1)
        assert [each.num_pages for each in stack.client.pins()] == [2]
        stack.client.unpin_prefix(pin.pin_id)


def test_a_pin_that_is_given_up_before_its_pages_are_there_ends(stack: ScriptedStack) -> None:
    with stack.worker(replace(LIMITS, max_num_seqs=1), step_seconds=0.01):
        running = stack.client.stream([7], max_tokens=400)
        next(iter(running))
        with pytest.raises(DeadlineExceededError):
            stack.client.pin_prefix([*range(60)], ttl_seconds=60, timeout=0.2)
        wait_until(lambda: stack.client.pins() == (), "no pin is left")
        running.cancel()
        stack.wait_idle()


def test_pins_are_their_tenants_and_bounded(stack: ScriptedStack) -> None:
    with (
        stack.worker(LIMITS),
        Client(stack.scheduler.target, timeout=20, metadata=(("x-pagewire-tenant", "a"),)) as one,
        Client(stack.scheduler.target, timeout=20, metadata=(("x-pagewire-tenant", "b"),)) as other,
    ):
        pin = one.pin_prefix([*range(64)], ttl_seconds=60)
        assert other.pins() == stack.client.pins() == ()
        with pytest.raises(NotFoundError):
            other.unpin_prefix(pin.pin_id)
        for client, num_tokens in ((one, 16), (other, 80), (stack.client, 80)):
            with pytest.raises(OverloadedError) as full:
                client.pin_prefix([*range(num_tokens)], ttl_seconds=60)
            assert full.value.reason == "PIN_QUOTA"
        one.unpin_prefix(pin.pin_id)


@pytest.mark.parametrize(
    ("prompt", "seconds", "field"),
    [(PROMPT, 0, "ttl_ms"), (PROMPT, 8 * 24 * 3600, "ttl_ms"), ([1], 60, "prefix"), ([], 60, "token_ids")],
)
def test_a_pin_that_could_keep_nothing_is_refused(
    stack: ScriptedStack, prompt: list[int], seconds: float, field: str
) -> None:
    with stack.worker(LIMITS):
        with pytest.raises(InvalidRequestError) as refused:
            stack.client.pin_prefix(prompt, ttl_seconds=seconds)
        assert [violation.field for violation in refused.value.field_violations] == [field]
        assert stack.client.pins() == ()


def test_a_quote_tells_what_a_request_would_meet(stack: ScriptedStack) -> None:
    client = stack.client
    with stack.worker(LIMITS):
        cold = client.quote(PROMPT)
        assert (cold.prompt_tokens, cold.cached_tokens, cold.queue_seconds) == (40, 0, 0.0)
        assert cold.first_token_seconds is None
        steps = client.load().num_steps
        client.generate(PROMPT, max_tokens=1)
        warm = client.quote(PROMPT, max_tokens=5, temperature=0)
        assert (warm.cached_tokens, warm.queue_seconds) == (32, 0.0)
        assert 0 < (warm.first_token_seconds or 0) < 5
        assert client.quote([{"role": "user", "content": "hello"}]).cached_tokens == 0
        assert client.load().num_steps == steps + 1
        for prompt, options in (([], {}), ([1] * 600, {}), (PROMPT, {"temperature": -1})):
            with pytest.raises(InvalidRequestError):
                client.quote(prompt, **options)  # type: ignore[arg-type]


def test_the_asynchronous_client_does_the_same(stack: ScriptedStack) -> None:
    async def ask() -> tuple[Any, ...]:
        async with AsyncClient(stack.scheduler.target) as client:
            pin = await client.pin_prefix(PROMPT, ttl_seconds=60)
            pins = await client.pins()
            await client.unpin_prefix(pin.pin_id)
            quote = await client.quote("some text")
            return pin.pin_id, [each.pin_id for each in pins], await client.pins(), quote.prompt_tokens > 0

    with stack.worker(LIMITS):
        pin_id, listed, after, has_tokens = asyncio.run(ask())
    assert (listed, after, has_tokens) == ([pin_id], (), True)


def test_commands_say_it_in_lines(stack: ScriptedStack) -> None:
    def run(*words: str) -> str:
        result = CliRunner().invoke(app, list(words), env={"PAGEWIRE_TARGET": stack.scheduler.target})
        assert result.exit_code == 0, result.output
        return result.stdout

    with stack.worker(LIMITS):
        told = ["0 of 21 tokens are cached", "begins in 0.000 s, first token in a time not known"]
        assert run("quote", "twenty letters, more").splitlines() == told
        pin_id, pages, _ = run("pin", "twenty letters, more", "--ttl", "60").split("  ")
        assert pages == "1 page"
        assert f'"pin_id": "{pin_id}"' in run("pins", "--json")
        assert run("unpin", pin_id) + run("pins") == ""
