"""Whatever goes wrong, a call ends with one clear status and nothing is left running."""

import asyncio
import sys
import time
from typing import Any

import grpc
import pytest
from pagewire.internal.v1 import front_pb2
from pagewire.v1 import admin_pb2, admin_pb2_grpc, cache_pb2, cache_pb2_grpc, model_pb2
from pagewire.v1 import generation_pb2 as pb
from support.fake_scheduler import FakeScheduler, toy_card
from support.front_stack import details_of, fields_of, front_stack, ids_of, text_of

from scheduler_svc.front import live_request

SECRET = "你好\n\0😀 secret"


def request_for(prompt: list[int] | None = None, **fields: Any) -> Any:
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt or [65]), **fields)


def forever() -> FakeScheduler:
    """Every output gets a few tokens and then waits."""
    return FakeScheduler(lambda submit: [[65, 66]] * submit.n)


async def failure(call: Any) -> Any:
    with pytest.raises(grpc.RpcError) as failed:
        await call
    return failed.value


async def test_unknown_model_and_missing_worker() -> None:
    async with front_stack() as stack:
        error = await failure(stack.stream(request_for(model="other")))
        assert error.code() == grpc.StatusCode.NOT_FOUND
        assert details_of(error)["ErrorInfo"].reason == "MODEL_NOT_FOUND"
        assert details_of(error)["ErrorInfo"].domain == "pagewire.dev"
        await stack.scheduler.announce(num_workers=0, retry_ms=700)
        await stack.wait_serving("NOT_SERVING")
        error = await failure(stack.once(request_for()))
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert details_of(error)["RetryInfo"].retry_delay.ToMilliseconds() == 700
        assert dict(error.trailing_metadata())["grpc-retry-pushback-ms"] == "700"
        # What needs no worker still works.
        tokens = await stack.generation.Tokenize(pb.TokenizeRequest(text="hi"))
        assert list(tokens.token_ids) == [256, 104, 105]
        await stack.scheduler.announce(num_workers=1)
        await stack.wait_serving()
        assert text_of(await stack.stream(request_for())) == "Hi"
        await stack.scheduler.announce(draining=True)
        await stack.wait_serving("NOT_SERVING")
        error = await failure(stack.once(request_for()))
        assert details_of(error)["ErrorInfo"].reason == "DRAINING"


@pytest.mark.parametrize("method", ["Generate", "GenerateOnce", "GenerateMany", "GetRequest", "Quote"])
async def test_bytes_that_are_no_request_are_the_callers_fault(method: str) -> None:
    def identity(content: bytes) -> bytes:
        return content

    async with front_stack() as stack:
        kind = {"Generate": "unary_stream", "GenerateMany": "stream_stream"}.get(method, "unary_unary")
        call: Any = getattr(stack.channel, kind)(
            f"/pagewire.v1.GenerationService/{method}", request_serializer=identity, response_deserializer=identity
        )
        request = [b"\xff\xff"] if method == "GenerateMany" else b"\xff\xff"
        error = await failure(call(request) if kind == "unary_unary" else call(request).read())
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert fields_of(error) == ["request"]
        assert "protobuf" not in error.details()
        assert text_of(await stack.stream(request_for())) == "Hi"


async def test_rejections_of_the_scheduler() -> None:
    scheduler = FakeScheduler()
    async with front_stack(scheduler) as stack:
        for rejected, code, reason in (
            (front_pb2.Rejected(code=6, reason="REQUEST_EXISTS", message="m"), "ALREADY_EXISTS", "REQUEST_EXISTS"),
            (
                front_pb2.Rejected(code=8, reason="QUEUE_FULL", retry_ms=50, num_waiting=7),
                "RESOURCE_EXHAUSTED",
                "QUEUE_FULL",
            ),
            (front_pb2.Rejected(code=14, reason="DRAINING"), "UNAVAILABLE", "DRAINING"),
            (front_pb2.Rejected(code=4, reason="DEADLINE", message="m"), "DEADLINE_EXCEEDED", "DEADLINE"),
            (front_pb2.Rejected(code=3, field="prompt", message="m"), "INVALID_ARGUMENT", "INVALID_FIELD"),
        ):
            scheduler.reject = rejected
            error = await failure(stack.stream(request_for()))
            assert error.code().name == code
            details = details_of(error)
            assert details["ErrorInfo"].reason == reason
            assert details["ErrorInfo"].metadata.get("queue_depth") == ("7" if code == "RESOURCE_EXHAUSTED" else None)
            assert details["ErrorInfo"].metadata.get("stage") == ("queue" if code == "DEADLINE_EXCEEDED" else None)
            assert ("RetryInfo" in details) == (code in ("RESOURCE_EXHAUSTED", "UNAVAILABLE"))
        assert fields_of(error) == ["token_ids"]
        assert stack.front.link.num_live == 0


@pytest.mark.parametrize(
    ("reason", "code", "name"),
    [
        (front_pb2.END_REASON_WORKER_LOST, "UNAVAILABLE", "WORKER_LOST"),
        (front_pb2.END_REASON_SHUTDOWN, "UNAVAILABLE", "SHUTDOWN"),
        (front_pb2.END_REASON_NAN, "INTERNAL", "NAN_LOGITS"),
        (front_pb2.END_REASON_GRAMMAR, "INVALID_ARGUMENT", "INVALID_FIELD"),
        (front_pb2.END_REASON_STEP_FAILED, "INTERNAL", "STEP_FAILED"),
        (front_pb2.END_REASON_DEADLINE, "DEADLINE_EXCEEDED", "DEADLINE"),
    ],
)
async def test_hard_ends(reason: int, code: str, name: str) -> None:
    async with front_stack(forever()) as stack:
        call = stack.generation.Generate(request_for())
        await call.read()
        await stack.scheduler.end(1, reason, stage="decode", retry_ms=300)
        error = await failure(drain(call))
        assert error.code().name == code
        assert details_of(error)["ErrorInfo"].reason == name
        assert ("RetryInfo" in details_of(error)) == (code == "UNAVAILABLE")


async def drain(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass
    if await call.code() != grpc.StatusCode.OK:
        raise grpc.aio.AioRpcError(
            await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details()
        )


@pytest.mark.parametrize("kind", ["stream", "once"])
async def test_deadline_is_told_with_stage_and_reaches_the_scheduler(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_request, "EARLY_SECONDS", 0.5)
    monkeypatch.setattr(live_request, "GRACE_SECONDS", 0.4)
    async with front_stack(forever()) as stack:
        call = stack.stream(request_for(), timeout=1.0) if kind == "stream" else stack.once(request_for(), timeout=1.0)
        error = await failure(call)
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        info = details_of(error)["ErrorInfo"]
        assert info.metadata["stage"] == "decode"
        assert info.metadata["output_tokens"] == "2"
        assert [cancel.deadline for cancel in stack.scheduler.cancels] == [True]
        assert 0 < stack.scheduler.submits[0].deadline_ms <= 1100


async def test_cancel_of_a_unary_call_reaches_the_scheduler() -> None:
    async with front_stack(forever()) as stack:
        call = stack.generation.GenerateOnce(pb.GenerateOnceRequest(request=request_for()))
        await stack.scheduler.wait_for(lambda: len(stack.scheduler.running) == 1)
        call.cancel()
        await stack.scheduler.wait_for(lambda: len(stack.scheduler.cancels) == 1)
        assert not stack.scheduler.running


CLIENT = """
import sys, grpc
from pagewire.v1 import generation_pb2, generation_pb2_grpc
stub = generation_pb2_grpc.GenerationServiceStub(grpc.insecure_channel(sys.argv[1]))
request = generation_pb2.GenerateRequest(text="x")
calls = [stub.Generate(request) for _ in range(4)]
once = stub.GenerateOnce.future(generation_pb2.GenerateOnceRequest(request=request))
sys.stdin.read()
"""


async def test_can_01_killed_client_ends_its_requests() -> None:
    async with front_stack(forever()) as stack:
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CLIENT, f"127.0.0.1:{stack.front.port}", stdin=asyncio.subprocess.PIPE
        )
        await stack.scheduler.wait_for(lambda: len(stack.scheduler.running) == 5, seconds=15)
        client.kill()
        await client.wait()
        await stack.scheduler.wait_for(lambda: len(stack.scheduler.cancels) == 5)
        assert stack.front.link.num_live == 0


async def test_changed_session_ends_live_requests_and_says_hello_again() -> None:
    async with front_stack(forever()) as stack:
        call = stack.generation.Generate(request_for())
        await call.read()
        stack.scheduler.session += 1
        stack.scheduler.running.clear()
        error = await failure(drain(call))
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert details_of(error)["ErrorInfo"].reason == "SCHEDULER_LOST"
        await stack.wait_serving()
        stack.scheduler.script = lambda submit: [[66, 257]]
        assert text_of(await stack.stream(request_for())) == "B"


async def test_silent_scheduler_ends_live_requests() -> None:
    async with front_stack(forever(), heartbeat_seconds=0.02) as stack:
        call = stack.generation.Generate(request_for())
        await call.read()
        stack.scheduler._tasks[2].cancel()
        error = await failure(drain(call))
        assert details_of(error)["ErrorInfo"].reason == "SCHEDULER_LOST"
        # It was silent only: the request it still runs is cancelled once it is heard again.
        await stack.scheduler.wait_for(lambda: len(stack.scheduler.cancels) >= 1)


@pytest.mark.parametrize("reads_later", [True, False])
async def test_slow_reader_is_ended(reads_later: bool) -> None:
    scheduler = FakeScheduler(lambda submit: [[264] * 60_000], card=toy_card(max_model_len=100_000), tokens_per_step=50)
    options = [("grpc.http2.lookahead_bytes", 65_536), ("grpc.http2.bdp_probe", 0)]
    async with front_stack(scheduler, channel_options=options, slow_reader_seconds=0.3) as stack:
        call = stack.generation.Generate(request_for())
        await call.read()
        await scheduler.wait_for(lambda: len(scheduler.cancels) == 1, seconds=15)
        assert stack.front.link.num_live == 0
        if reads_later:
            error = await failure(drain(call))
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert details_of(error)["ErrorInfo"].reason == "SLOW_READER"
        else:
            call.cancel()


async def test_grp_01_large_messages() -> None:
    async with front_stack() as stack:
        sibling = stack.generation.Generate(request_for())
        for size, code in ((3_900_000, 3), (4_100_000, 3), (15_900_000, 3), (17_000_000, 8)):
            error = await failure(stack.stream(pb.GenerateRequest(text="x" * size)))
            assert error.code().value[0] == code
        error = await failure(stack.stream(request_for([65] * 3_000_000)))
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert text_of([event async for event in sibling]) == "Hi"
        wide = pb.OutputOptions(n=16)
        async with front_stack(FakeScheduler(card=toy_card(max_model_len=100_000))) as large:
            error = await failure(large.once(request_for(output=wide)))
            assert fields_of(error) == ["output.n"]


class BugError(Exception):
    """Stands for a bug."""


@pytest.mark.parametrize(
    "fault",
    [
        asyncio.CancelledError(),
        ValueError(SECRET),
        BugError("x" * 100_000),
        KeyError(SECRET),
    ],
    ids=["cancelled", "value", "long", "key"],
)
@pytest.mark.parametrize("place", ["prepare", "stream"])
async def test_grp_04_every_fault_becomes_a_status(
    fault: BaseException, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = {
        "prepare": "scheduler_svc.front.preparation.Preparation.prepare",
        "stream": "scheduler_svc.front.live_request.LiveRequest.take",
    }[place]

    def broken(*args: object, **kwargs: object) -> None:
        raise fault

    async with front_stack() as stack:
        monkeypatch.setattr(target, broken)
        for call in (stack.stream, stack.once):
            start = time.monotonic()
            error = await failure(call(pb.GenerateRequest(text=SECRET)))
            assert time.monotonic() - start < 1.0
            assert error.code() == grpc.StatusCode.INTERNAL
            assert details_of(error)["ErrorInfo"].reason == "INTERNAL"
            assert "secret" not in str(error.details()) + str(error.trailing_metadata())
        assert stack.front.link.num_live == 0
        monkeypatch.undo()
        assert text_of(await stack.stream(request_for())) == "Hi"


async def test_grp_04_fault_after_messages_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async with front_stack(forever()) as stack:
        call = stack.generation.Generate(request_for())
        first = await call.read()
        monkeypatch.setattr("scheduler_svc.front.live_request.LiveRequest.take", lambda self: 1 // 0)
        await stack.scheduler.end(1, front_pb2.END_REASON_TIME_LIMIT)
        error = await failure(drain(call))
        assert first.delta.text.startswith("A")
        assert error.code() == grpc.StatusCode.INTERNAL


async def test_len_05_huge_prompts_do_not_stall_others() -> None:
    scheduler = FakeScheduler(lambda submit: [[65] * 4000])
    scheduler.service.model_card.max_model_len = 4096
    scheduler.step_seconds = 0.002
    async with front_stack(scheduler) as stack:
        call = stack.generation.Generate(request_for(stop=pb.StopOptions(ignore_eos=True)))
        await call.read()
        gaps: list[float] = []

        async def watch() -> None:
            last = time.monotonic()
            while await call.read() is not grpc.aio.EOF:
                gaps.append(time.monotonic() - last)
                last = time.monotonic()

        watching = asyncio.ensure_future(watch())
        text = pb.GenerateRequest(text="word " * 400_000)
        chat = pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="user")] * 100_000))
        # These fit by their bytes and have to be tokenized, which takes long.
        fits = pb.GenerateRequest(text="word " * 5000)
        for error in await asyncio.gather(*[failure(stack.stream(request)) for request in [text] * 5 + [chat, fits]]):
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        call.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert gaps
        assert max(gaps) < 0.5


async def test_tpl_02_chats() -> None:
    bare = FakeScheduler(card=toy_card(chat_template=""))
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="hello")])
    async with front_stack(bare) as stack:
        assert text_of(await stack.stream(pb.GenerateRequest(text="hi"))) == "Hi"
        error = await failure(stack.stream(pb.GenerateRequest(chat=chat)))
        assert fields_of(error) == ["chat"]
    strict = FakeScheduler(card=toy_card(chat_template="{{ raise_exception('no ' ~ messages[0].role ~ ' here') }}"))
    async with front_stack(strict) as stack:
        error = await failure(stack.stream(pb.GenerateRequest(chat=chat)))
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "no user here" in error.details()
    async with front_stack() as stack:
        await stack.once(pb.GenerateRequest(chat=chat))
        tokens = await stack.generation.Tokenize(pb.TokenizeRequest(chat=chat))
        back = await stack.generation.Detokenize(
            pb.DetokenizeRequest(token_ids=tokens.token_ids, skip_special_tokens=False)
        )
        assert back.text == "<|sp|>user\nhello<|end|><|sp|>assistant\n"
        assert stack.scheduler.submits[0].prompt_token_ids == b"".join(
            token_id.to_bytes(4, "little") for token_id in tokens.token_ids
        )


async def test_a_callers_name_of_a_call_comes_back() -> None:
    async with front_stack() as stack:
        request, named = pb.GenerateOnceRequest(request=request_for()), (("x-request-id", "mine"),)
        call = stack.generation.GenerateOnce(request, metadata=named)
        assert dict(await call.trailing_metadata())["x-request-id"] == "mine"
        error = await failure(stack.generation.GetRequest(pb.GetRequestRequest(), metadata=named))
        assert dict(error.trailing_metadata())["x-request-id"] == "mine"
        call = stack.generation.GenerateOnce(request, metadata=(("x-request-id", "x" * 257),))
        assert "x-request-id" not in dict(await call.trailing_metadata())


async def test_admin_answers_on_the_internal_port_alone() -> None:
    async with front_stack(internal_port=0) as stack:
        public = admin_pb2_grpc.AdminServiceStub(stack.channel)
        assert (await failure(public.GetLoad(admin_pb2.GetLoadRequest()))).code() == grpc.StatusCode.UNIMPLEMENTED
        cache = cache_pb2_grpc.CacheServiceStub(stack.channel)
        error = await failure(cache.ResetPrefixCache(cache_pb2.ResetPrefixCacheRequest()))
        assert error.code() == grpc.StatusCode.PERMISSION_DENIED
        async with grpc.aio.insecure_channel(f"127.0.0.1:{stack.front.internal_port}") as channel:
            admin = admin_pb2_grpc.AdminServiceStub(channel)
            assert (await admin.GetLoad(admin_pb2.GetLoadRequest())).num_workers == 1
            workers = await admin.ListWorkers(admin_pb2.ListWorkersRequest())
            assert [worker.worker_id for worker in workers.workers] == ["w1"]
            explained = await admin.ExplainRequest(admin_pb2.ExplainRequestRequest(request_id="r"))
            assert [decision.text for decision in explained.decisions] == ["waits"]
            await admin.Drain(admin_pb2.DrainRequest(timeout_ms=5))
            assert stack.scheduler.queries[-1].drain_ms == 5
            await admin.Drain(admin_pb2.DrainRequest(timeout_ms=2**64 - 1))
            assert stack.scheduler.queries[-1].drain_ms == 2**53  # further milliseconds are not told apart
            await admin.Drain(admin_pb2.DrainRequest())
            assert stack.scheduler.queries[-1].drain
            await admin.UpdateLimits(admin_pb2.UpdateLimitsRequest(max_num_seqs=3))
            assert stack.scheduler.queries[-1].update_limits.max_num_seqs == 3
            await admin.RemoveWorker(admin_pb2.RemoveWorkerRequest(worker_id="w1"))
            assert stack.scheduler.queries[-1].remove_worker_id == "w1"


async def test_models_are_described() -> None:
    async with front_stack(FakeScheduler(), serving=False) as stack:
        await stack.wait_serving()
        models = (await stack.models.ListModels(model_pb2.ListModelsRequest())).models
        assert [(model.name, model.max_model_len, model.page_size) for model in models] == [("toy", 256, 16)]
        assert {"chat", "logprobs"} <= set(models[0].capabilities)
        assert (await stack.models.GetModel(model_pb2.GetModelRequest())).model == models[0]
        error = await failure(stack.models.GetModel(model_pb2.GetModelRequest(name="x")))
        assert error.code() == grpc.StatusCode.NOT_FOUND


async def test_before_a_worker_joined() -> None:
    scheduler = FakeScheduler()
    scheduler.service.ClearField("model_card")
    scheduler.service.num_workers = 0
    async with front_stack(scheduler, serving=False) as stack:
        await scheduler.wait_for(lambda: len(scheduler.hellos) == 1)
        assert not (await stack.models.ListModels(model_pb2.ListModelsRequest())).models
        for call in (stack.stream(request_for()), stack.generation.Tokenize(pb.TokenizeRequest(text="a"))):
            assert (await failure(call)).code() == grpc.StatusCode.UNAVAILABLE
        scheduler.service.model_card.CopyFrom(toy_card())
        await scheduler.announce(num_workers=1)
        await stack.wait_serving()
        assert text_of(await stack.stream(request_for())) == "Hi"


async def test_unusable_model_card_keeps_the_front_alive() -> None:
    scheduler = FakeScheduler(card=toy_card(tokenizer_json=b"{}"))
    async with front_stack(scheduler, serving=False) as stack:
        await stack.wait_serving("NOT_SERVING")
        scheduler.service.model_card.CopyFrom(toy_card())
        await scheduler.announce()
        await stack.wait_serving()
        assert text_of(await stack.stream(request_for())) == "Hi"


async def test_odd_frames_do_no_harm() -> None:
    async with front_stack(forever()) as stack:
        call = stack.generation.Generate(request_for(output=pb.OutputOptions(token_ids=True)))
        stream = aiter(call)
        events = [await anext(stream)]
        bad = front_pb2.SchedulerToFrontFrame(tokens=front_pb2.Tokens(keys=b"123", token_ids=b"1"))
        await stack.scheduler.send_all(bad)
        short = front_pb2.Tokens(keys=(1).to_bytes(8, "little"), token_ids=bytes(8))
        await stack.scheduler.send_all(front_pb2.SchedulerToFrontFrame(tokens=short))
        for front in stack.scheduler._fronts:
            await stack.scheduler._socket.send_multipart([front, b"\xff\xff no frame"])
        unknown = front_pb2.SchedulerToFrontFrame()
        unknown.events.add(key=999, held=front_pb2.HeldEnding())
        unknown.events.add(key=1, held=front_pb2.HeldEnding(index=7))
        unknown.events.add(key=1, output_ended=front_pb2.OutputEnded(index=7))
        unknown.events.add(key=1)
        await stack.scheduler.send_all(unknown)
        await stack.scheduler.end(1, front_pb2.END_REASON_TIME_LIMIT)
        events += [event async for event in stream]
        assert ids_of(events) == [65, 66]
