"""Generation through a real front with a scripted scheduler: the handed cases, each named by its id."""

import asyncio
from typing import Any

import grpc
import pytest
from pagewire.internal.v1 import front_pb2
from pagewire.v1 import generation_pb2 as pb
from support import toy_tokenizer as toy
from support.fake_scheduler import FakeScheduler, toy_card
from support.front_stack import details_of, fields_of, finished_of, front_stack, ids_of, text_of

from scheduler_svc.front.live_request import LiveRequest
from scheduler_svc.front.served_model import ServedModel


def request_for(prompt: list[int] | None = None, **fields: Any) -> Any:
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt or [65]), **fields)


def scripted(*outputs: list[int], **options: Any) -> FakeScheduler:
    return FakeScheduler(lambda submit: [outputs[index % len(outputs)] for index in range(submit.n)], **options)


async def both(scheduler: FakeScheduler, request: Any) -> tuple[list[Any], Any]:
    """The request as a stream and at once; checks that they agree."""
    async with front_stack(scheduler) as stack:
        events = await stack.stream(request)
        once = await stack.once(request)
    for output in once.outputs:
        finished = finished_of(events, output.index)
        assert output.text == text_of(events, output.index)
        assert list(output.token_ids) == ids_of(events, output.index)
        assert output.finished == finished
    assert once.summary.usage == events[-1].summary.usage
    return events, once


async def test_a_request_whose_output_cannot_be_prepared_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("no such table")

    async with front_stack(scripted([65])) as stack:
        monkeypatch.setattr(ServedModel, "detokenizer", fails)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stack.once(request_for())
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        await stack.scheduler.wait_for(lambda: len(stack.scheduler.cancels) == 1)
        assert stack.front.link.num_live == 0


@pytest.mark.parametrize("tokens_per_step", [1, 2, 8])
async def test_dtk_01_characters_are_whole(tokens_per_step: int) -> None:
    ids = [196, 143, 225, 186, 163, 257]
    events, _ = await both(scripted(ids, tokens_per_step=tokens_per_step), request_for())
    deltas = [event.delta.text for event in events if event.HasField("delta")]
    assert all("\ufffd" not in text for text in deltas)
    assert "".join(deltas) == "ďả"
    assert finished_of(events).finish_reason == pb.FINISH_REASON_STOP


async def test_dtk_04_max_tokens_inside_a_character() -> None:
    request = request_for(stop=pb.StopOptions(max_tokens=5), output=pb.OutputOptions(token_ids=True))
    events, _ = await both(scripted([72, 105, 240, 159, 152, 128]), request)
    assert text_of(events) == "Hi\ufffd"
    assert ids_of(events) == [72, 105, 240, 159, 152]
    assert events[-1].summary.usage.output_tokens == 5
    assert finished_of(events).finish_reason == pb.FINISH_REASON_LENGTH


@pytest.mark.parametrize("hidden", [True, False])
async def test_dtk_07_special_tokens_once(hidden: bool) -> None:
    request = request_for(output=pb.OutputOptions(n=2, skip_special_tokens=hidden))
    events, _ = await both(scripted([65, 258, 66, 258, 258, 257]), request)
    for index in range(2):
        assert text_of(events, index) == ("AB" if hidden else "A<|sp|>B<|sp|><|sp|>")
    assert events[-1].summary.usage.output_tokens == 12


@pytest.mark.parametrize("tokens_per_step", [1, 4])
async def test_stp_01_stop_ends_inside_a_token(tokens_per_step: int) -> None:
    request = request_for(stop=pb.StopOptions(stop=["KL"], max_tokens=10), output=pb.OutputOptions(token_ids=True))
    events, _ = await both(scripted([260, 261, 262, 263, 257], tokens_per_step=tokens_per_step), request)
    assert text_of(events) == ""
    assert finished_of(events).stop_string == "KL"
    assert finished_of(events).finish_reason == pb.FINISH_REASON_STOP
    assert events[-1].summary.usage.output_tokens == 1
    assert ids_of(events) == [260]


@pytest.mark.parametrize("tokens_per_step", [1, 2, 6])
async def test_stp_02_beginning_of_a_stop_string_never_leaks(tokens_per_step: int) -> None:
    request = request_for(stop=pb.StopOptions(stop=["KLMNOPQ"]))
    events, _ = await both(scripted([65, 260, 261, 262, 263, 66], tokens_per_step=tokens_per_step), request)
    assert text_of(events) == "A"
    assert events[-1].summary.usage.output_tokens == 5


@pytest.mark.parametrize(
    ("ids", "stops", "include", "text", "matched"),
    [
        ([270, 65], ["c", "X"], False, "ab", "X"),
        ([270, 65], ["X", "c"], True, "abX", "X"),
        ([270], ["bX", "abX"], False, "", "abX"),
        ([270], ["abX", "bX"], False, "", "abX"),
        ([72, 270], ["a"], False, "H", "a"),
    ],
)
async def test_stp_04_earliest_stop_wins(
    ids: list[int], stops: list[str], include: bool, text: str, matched: str
) -> None:
    card = toy_card(tokenizer_json=toy.tokenizer_json(((270, "abXcd"),)))
    request = request_for(stop=pb.StopOptions(stop=stops, include_stop=include))
    events, _ = await both(scripted(ids, card=card), request)
    assert text_of(events) == text
    assert finished_of(events).stop_string == matched


async def test_stp_07_absurd_stop_lists() -> None:
    async with front_stack(scripted([65, 66, 257])) as stack:
        for stops in ([""], ["", "X"], ["x" * 1000] * 10_000):
            with pytest.raises(grpc.RpcError) as failed:
                await stack.stream(request_for(stop=pb.StopOptions(stop=stops)))
            assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert fields_of(failed.value)[0].startswith("stop.stop")
        events = await stack.stream(request_for(stop=pb.StopOptions()))
        assert text_of(events) == "AB"


async def test_stp_07_replacement_character_does_not_fire_on_half_a_character() -> None:
    request = request_for(stop=pb.StopOptions(stop=["\ufffd"]))
    events, _ = await both(scripted([72, 196, 143, 257]), request)
    assert text_of(events) == "Hď"
    assert finished_of(events).stop_token_id == 257


@pytest.mark.parametrize(
    ("ids", "stop", "reason", "num_tokens"),
    [
        ([65, 257], {}, pb.FINISH_REASON_STOP, 2),
        ([65, 66, 67], {"max_tokens": 2}, pb.FINISH_REASON_LENGTH, 2),
        ([65, 66, 67], {"stop": ["B"]}, pb.FINISH_REASON_STOP, 2),
        ([257], {}, pb.FINISH_REASON_STOP, 1),
        ([257], {"stop": ["B"]}, pb.FINISH_REASON_STOP, 1),
        ([65] * 300, {"ignore_eos": True}, pb.FINISH_REASON_LENGTH, 255),
    ],
)
async def test_fin_01_one_terminal_message(ids: list[int], stop: dict[str, Any], reason: int, num_tokens: int) -> None:
    events, _ = await both(scripted(ids), request_for(stop=pb.StopOptions(**stop)))
    assert finished_of(events).finish_reason == reason
    assert events[-1].summary.usage.output_tokens == num_tokens


async def test_fin_01_client_cancel_reaches_the_scheduler() -> None:
    async with front_stack(scripted([65])) as stack:
        call = stack.generation.Generate(request_for())
        assert (await call.read()).delta.text == "A"
        call.cancel()
        await stack.scheduler.wait_for(lambda: len(stack.scheduler.cancels) == 1)
        assert await call.code() == grpc.StatusCode.CANCELLED
        assert not stack.scheduler.running
        assert stack.front.link.num_live == 0


@pytest.mark.parametrize(
    ("ids", "stop", "reason"),
    [
        ([65, 66, 257], {}, pb.FINISH_REASON_STOP),
        ([65, 66, 67], {}, pb.FINISH_REASON_LENGTH),
        ([65, 66, 67], {"stop": ["C"]}, pb.FINISH_REASON_STOP),
        ([65, 66, 257], {"ignore_eos": True}, pb.FINISH_REASON_LENGTH),
    ],
)
async def test_fin_02_content_beats_length(ids: list[int], stop: dict[str, Any], reason: int) -> None:
    events, _ = await both(scripted(ids), request_for(stop=pb.StopOptions(max_tokens=3, **stop)))
    assert finished_of(events).finish_reason == reason


async def test_held_ending_without_a_match_is_confirmed() -> None:
    scheduler = scripted([65, 75, 257])
    events, _ = await both(scheduler, request_for(stop=pb.StopOptions(stop=["KL"])))
    assert text_of(events) == "AK"
    assert len(scheduler.scanned) == 2
    assert not scheduler.stops


async def test_prm_01_empty_prompts() -> None:
    async with front_stack() as stack:
        with pytest.raises(grpc.RpcError) as failed:
            await stack.stream(pb.GenerateRequest(token_ids=pb.TokenIds()))
        assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert fields_of(failed.value) == ["token_ids"]
        with pytest.raises(grpc.RpcError) as failed:
            await stack.stream(pb.GenerateRequest(text="", prompt_options=pb.PromptOptions(add_special_tokens=False)))
        assert fields_of(failed.value) == ["text"]
        with pytest.raises(grpc.RpcError) as failed:
            await stack.stream(pb.GenerateRequest(chat=pb.Chat()))
        assert fields_of(failed.value) == ["chat.messages"]
        for prompt in ("", "   ", "\n"):
            events = await stack.stream(pb.GenerateRequest(text=prompt))
            assert events[-1].summary.usage.prompt_tokens == 1 + len(prompt)
        for token_id in (toy.BOS, toy.EOS):
            assert text_of(await stack.stream(request_for([token_id]))) == "Hi"


async def test_prm_02_one_bad_prompt_in_many() -> None:
    starts = [
        pb.GenerateRequest(request_id="0", text="Hi"),
        pb.GenerateRequest(request_id="1", token_ids=pb.TokenIds()),
        pb.GenerateRequest(request_id="2", text="A" * 10),
        pb.GenerateRequest(request_id="3", token_ids=pb.TokenIds(ids=[10**9])),
        pb.GenerateRequest(request_id="4", text="Bye", sampling=pb.SamplingOptions(temperature=-1)),
        pb.GenerateRequest(request_id="5", text="Bye"),
    ]
    async with front_stack() as stack:
        call = stack.generation.GenerateMany(iter([pb.GenerateManyRequest(start=start) for start in starts]))
        texts: dict[str, str] = {}
        failures: dict[str, int] = {}
        summaries = 0
        async for message in call:
            for event in message.events:
                if event.HasField("failure"):
                    failures[event.failure.request_id] = event.failure.status.code
                else:
                    request_id = event.response.request_id
                    texts[request_id] = texts.get(request_id, "") + event.response.delta.text
                    summaries += event.response.HasField("summary")
        assert await call.code() == grpc.StatusCode.OK
        assert texts == {"0": "Hi", "2": "Hi", "5": "Hi"}
        assert summaries == 3
        assert failures == {"1": 3, "3": 3, "4": 3}
        assert stack.front.link.num_live == 0


async def test_prm_05_max_tokens() -> None:
    scheduler = scripted([65] * 300)
    async with front_stack(scheduler) as stack:
        prompt = [65] * 40
        for max_tokens, expected in ((1, 1), (None, 216), (2**31 - 1, 216), (2**32 - 1, 216)):
            stop = pb.StopOptions(ignore_eos=True, max_tokens=max_tokens)
            events = await stack.stream(request_for(prompt, stop=stop, output=pb.OutputOptions(token_ids=True)))
            assert len(ids_of(events)) == expected == events[-1].summary.usage.output_tokens
            assert finished_of(events).finish_reason == pb.FINISH_REASON_LENGTH
        with pytest.raises(grpc.RpcError) as failed:
            await stack.stream(request_for(prompt, stop=pb.StopOptions(max_tokens=0)))
        assert fields_of(failed.value) == ["stop.max_tokens"]
        one = request_for(prompt, stop=pb.StopOptions(ignore_eos=True, max_tokens=1))
        answers = await asyncio.gather(*[stack.once(one) for _ in range(50)])
        assert {answer.outputs[0].text for answer in answers} == {"A"}
        assert stack.front.link.num_live == 0


@pytest.mark.parametrize("num_prompt", [256, 257])
async def test_len_01_prompt_at_the_limit(num_prompt: int) -> None:
    async with front_stack() as stack:
        with pytest.raises(grpc.RpcError) as failed:
            await stack.stream(request_for([65] * num_prompt))
        assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        description = details_of(failed.value)["BadRequest"].field_violations[0].description
        assert str(num_prompt) in description
        assert "256" in description
        assert f"{num_prompt + 1} tokens" in description
        truncated = request_for([65] * num_prompt, prompt_options=pb.PromptOptions(truncate_prompt_tokens=10))
        events = await stack.stream(truncated)
        assert events[-1].summary.usage.prompt_tokens == 10
        wide = request_for([2**32 - 1] * num_prompt, prompt_options=pb.PromptOptions(truncate_prompt_tokens=10_000))
        with pytest.raises(grpc.RpcError) as failed:
            await stack.stream(wide)
        assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_n_outputs_each_end_once() -> None:
    request = request_for(output=pb.OutputOptions(n=3, token_ids=True), stop=pb.StopOptions(stop=["C"]))
    events, once = await both(scripted([65, 257], [66, 67, 68], [69] * 300), request)
    assert [output.text for output in once.outputs] == ["A", "B", "E" * 255]
    assert finished_of(events, 2).finish_reason == pb.FINISH_REASON_LENGTH
    assert events[-1].summary.usage.output_tokens == 2 + 2 + 255


async def test_tokens_coalesce_behind_a_slow_write() -> None:
    """A stream never carries more messages than there were chances to write, and loses nothing."""
    scheduler = scripted([97 + place % 26 for place in range(200)])
    async with front_stack(scheduler) as stack:
        request = request_for(output=pb.OutputOptions(max_delay_ms=20), stop=pb.StopOptions(max_tokens=200))
        events = await stack.stream(request)
        deltas = [event for event in events if event.HasField("delta")]
        assert text_of(events) == "".join(chr(97 + place % 26) for place in range(200))
        assert len(deltas) < 100


async def test_seed_is_drawn_and_returned() -> None:
    async with front_stack() as stack:
        seeds = {(await stack.once(request_for())).summary.seed for _ in range(3)}
        assert len(seeds) == 3
        answer = await stack.once(request_for(sampling=pb.SamplingOptions(seed=0)))
        assert answer.summary.seed == 0
        assert stack.scheduler.submits[-1].seed == 0


async def test_defaults_come_from_the_model_then_from_the_api() -> None:
    card = toy_card()
    card.generation_defaults.temperature = 0.25
    card.generation_defaults.top_k = 7
    async with front_stack(FakeScheduler(card=card)) as stack:
        await stack.once(request_for())
        await stack.once(request_for(sampling=pb.SamplingOptions(temperature=0, top_k=0, top_p=0.5)))
        first, second = stack.scheduler.submits
        assert (first.temperature, first.top_k, first.top_p, first.min_p) == (0.25, 7, 1.0, 0.0)
        assert (second.temperature, second.top_k, second.top_p) == (0.0, 0, 0.5)
        assert len(first.page_hashes) == 0
        assert len(first.root_hash) == 16


async def test_pages_are_hashed_by_salt() -> None:
    async with front_stack() as stack:
        for scheduling in ({}, {"cache_salt": "a"}, {"bypass_prefix_cache": True}):
            await stack.once(request_for([65] * 40, scheduling=pb.SchedulingOptions(**scheduling)))
        plain, salted, bypassed = stack.scheduler.submits
        assert len(plain.page_hashes) == len(salted.page_hashes) == 32
        assert plain.page_hashes != salted.page_hashes
        assert bypassed.page_hashes == bypassed.root_hash == b""


async def test_progress_events_only_if_asked() -> None:
    for asked in (False, True):
        scheduler = scripted([65, 257])
        scheduler.gate.clear()
        async with front_stack(scheduler) as stack:
            call = stack.generation.Generate(request_for(output=pb.OutputOptions(progress_events=asked)))
            await scheduler.wait_for(lambda s=scheduler: len(s.running) == 1)
            await scheduler.event(1, queued=front_pb2.QueuedEvent(position=3, reason="waits"))
            await scheduler.event(1, admitted=front_pb2.AdmittedEvent(cached_tokens=2, worker_id="w1"))
            scheduler.gate.set()
            kinds = [event.WhichOneof("event") async for event in call]
            expected = ["queued", "admitted"] if asked else []
            assert kinds == [*expected, "delta", "finished", "summary"]


async def test_time_limit_ends_softly() -> None:
    scheduler = scripted([65, 66])
    async with front_stack(scheduler) as stack:
        call = stack.generation.Generate(request_for(scheduling=pb.SchedulingOptions(time_limit_ms=50)))
        stream = aiter(call)
        events = [await anext(stream)]
        await scheduler.end(1, front_pb2.END_REASON_TIME_LIMIT)
        events += [event async for event in stream]
        assert scheduler.submits[0].time_limit_ms == 50
        assert finished_of(events).finish_reason == pb.FINISH_REASON_DEADLINE


@pytest.mark.parametrize(("seconds", "deadline"), [(0.0, True), (60.0, False)])
async def test_who_leaves_when_its_time_is_over_did_not_cancel(seconds: float, deadline: bool) -> None:
    """Also where the front, too busy, did not come to end it first."""
    async with front_stack(scripted([65])) as stack:
        prepared = await stack.front.preparation.prepare(request_for())
        live = LiveRequest(prepared, stack.front.link, deadline=asyncio.get_running_loop().time() + seconds)
        live.close()
        await stack.scheduler.wait_for(lambda: len(stack.scheduler.cancels) == 1)
        [cancel] = stack.scheduler.cancels
        assert (cancel.deadline, cancel.broken) == (deadline, not deadline)


async def test_cancel_request_from_elsewhere_ends_softly() -> None:
    scheduler = scripted([65])
    async with front_stack(scheduler) as stack:
        call = stack.generation.Generate(request_for(request_id="mine"))
        stream = aiter(call)
        events = [await anext(stream)]
        known = await stack.generation.GetRequest(pb.GetRequestRequest(request_id="mine"))
        assert known.state == pb.REQUEST_STATE_RUNNING
        await stack.generation.CancelRequest(pb.CancelRequestRequest(request_id="mine"))
        events += [event async for event in stream]
        assert finished_of(events).finish_reason == pb.FINISH_REASON_CANCELLED
        assert text_of(events) == "A"
        for request_id, code in (("mine", grpc.StatusCode.NOT_FOUND), ("", grpc.StatusCode.INVALID_ARGUMENT)):
            with pytest.raises(grpc.RpcError) as failed:
                await stack.generation.CancelRequest(pb.CancelRequestRequest(request_id=request_id))
            assert failed.value.code() == code
