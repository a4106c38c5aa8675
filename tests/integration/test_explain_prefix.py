"""``ExplainPrefix`` through the whole product: the client, a front, the scheduler."""

import asyncio
from collections.abc import Iterator

import pytest
from pagewire.v1 import cache_pb2, cache_pb2_grpc
from pagewire.v1 import generation_pb2 as pb
from pagewire_client import AsyncClient, InvalidRequestError, PageExplanation, PageStatus, UnavailableError
from support.conditions import wait_until
from support.front_stack import front_stack
from support.scripted_rows import Limits
from support.scripted_stack import ScriptedStack

from scheduler_svc.front.access import AccessOptions

HIT, COLD = PageExplanation(status=PageStatus.HIT), PageExplanation(status=PageStatus.COLD)
TAIL, SALTED = PageExplanation(status=PageStatus.TAIL_NOT_FULL), PageExplanation(status=PageStatus.SALTED)
EVICTED = PageExplanation(status=PageStatus.EVICTED)
PROMPT = [*range(40)]


@pytest.fixture(scope="module")
def stack() -> Iterator[ScriptedStack]:
    with ScriptedStack() as running:
        yield running


def test_each_page_has_its_reason(stack: ScriptedStack) -> None:
    client, before = stack.client, stack.load()
    with stack.worker(Limits(num_pages=8, page_size=16)):
        assert client.explain_prefix(PROMPT) == (COLD, COLD, TAIL)
        client.generate(PROMPT, max_tokens=1)
        assert client.explain_prefix(PROMPT) == (HIT, HIT, TAIL)
        assert client.explain_prefix(PROMPT, cache_salt="mine") == (SALTED, SALTED, TAIL)
        diverged = PageExplanation(status=PageStatus.DIVERGED, diverged_at=20)
        assert client.explain_prefix([*range(20), 7, *range(30)]) == (HIT, diverged, COLD, TAIL)
        client.generate([*range(100, 220)], max_tokens=1)
        assert client.explain_prefix(PROMPT) == (EVICTED, EVICTED, TAIL)
        after = client.load()
        assert after.num_asked_pages - before.num_asked_pages == 9
        assert after.num_tail_pages - before.num_tail_pages == 2


def test_a_worker_knows_all_names_when_it_has_nothing_to_do(stack: ScriptedStack) -> None:
    with stack.worker(Limits(page_size=16)) as worker:
        stack.client.generate(PROMPT, max_tokens=1)
        wait_until(lambda: len(worker.rows.named) == 2, "both full pages are named")


def test_a_warmed_prompt_is_found_by_whoever_comes(stack: ScriptedStack) -> None:
    prompt, client = [*range(60, 110)], stack.client
    with stack.worker():
        assert client.warm_prefix(prompt) == 48
        assert client.warm_prefix(prompt) == 48
        assert client.warm_prefix(prompt[:10]) == 0
        assert client.generate(prompt, max_tokens=1).usage.cached_tokens == 48
        assert client.warm_prefix("a text to be warmed, of some pages", cache_salt="s") > 0
        with pytest.raises(InvalidRequestError):
            client.warm_prefix([])


def test_texts_and_chats_are_explained_too(stack: ScriptedStack) -> None:
    client, chat = stack.client, [{"role": "user", "content": "hello, is anybody there?"}]
    with stack.worker():
        client.generate("a text of more than one page", max_tokens=1)
        client.chat(chat, max_tokens=1)
        assert client.explain_prefix("a text of more than one page")[0] == HIT
        assert client.explain_prefix(chat)[0] == HIT


def test_the_asynchronous_client_asks_the_same(stack: ScriptedStack) -> None:
    async def ask() -> tuple[PageExplanation, ...]:
        async with AsyncClient(stack.scheduler.target) as client:
            return await client.explain_prefix([*range(200, 232)])

    with stack.worker():
        assert asyncio.run(ask()) == (COLD, COLD)


def test_a_prompt_that_could_not_be_generated_from_is_refused(stack: ScriptedStack) -> None:
    with pytest.raises(UnavailableError):
        stack.client.explain_prefix([1])
    with stack.worker():
        for prompt in ([], [100_000], [1] * 600):
            with pytest.raises(InvalidRequestError):
                stack.client.explain_prefix(prompt)


async def test_a_tenant_is_asked_for_by_name_and_by_its_own_pages() -> None:
    async with front_stack(access=AccessOptions(trust_tenant_metadata=True)) as stack:
        metadata = (("x-pagewire-tenant", "a"),)
        tokens, service = pb.TokenIds(ids=PROMPT), cache_pb2_grpc.CacheServiceStub(stack.channel)
        request = pb.GenerateRequest(token_ids=tokens, scheduling={"cache_salt": "mine"})
        await stack.generation.GenerateOnce(pb.GenerateOnceRequest(request=request), metadata=metadata)
        prefix = cache_pb2.Prefix(token_ids=tokens, cache_salt="mine")
        await service.ExplainPrefix(cache_pb2.ExplainPrefixRequest(prefix=prefix), metadata=metadata)
        submit, query = stack.scheduler.submits[-1], stack.scheduler.queries[-1]
        assert query.tenant == submit.tenant == "a"
        assert query.explain_prefix.page_hashes == submit.page_hashes
        assert query.explain_prefix.root_hash == submit.root_hash != query.explain_prefix.unsalted_root
