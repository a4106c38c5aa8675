"""Known faults of endings, usage, preempted streams and request ids, each by its id, through the whole product.

A real client, front and scheduler; the tokens are a script's.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pagewire_client import (
    AlreadyExistsError,
    DeadlineExceededError,
    Delta,
    Event,
    Finished,
    FinishReason,
    Generation,
    InvalidRequestError,
    NotFoundError,
    RequestCancelledError,
    Summary,
)
from support.conditions import wait_until
from support.engine_thread import EngineThread
from support.raw_front import RawFront
from support.scripted_rows import Limits
from support.scripted_stack import ScriptedStack, begun_prompts, counted, first_ids
from support.scripted_worker import ScriptedWorker, plain_script

from scheduler_svc import join_terms
from scheduler_svc.output_key import MAX_FRONT_KEY

A, B, C = 65, 66, 67
EOS = 257
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@pytest.fixture(scope="module")
def stack() -> Iterator[ScriptedStack]:
    with ScriptedStack() as running:
        with running.worker():  # its limits are the model's
            pass
        yield running


def both(stack: ScriptedStack, prompt: list[int], **options: Any) -> tuple[list[Event], Generation]:
    """The request as a stream and at once; one ending for every output, the summary last, and both agree."""
    events = list(stack.client.stream(prompt, token_ids=True, **options))
    answer = stack.client.generate(prompt, token_ids=True, **options)
    assert isinstance(events[-1], Summary)
    assert sum(isinstance(event, Summary) for event in events) == 1
    for output in answer.outputs:
        deltas = [event for event in events if isinstance(event, Delta) and event.index == output.index]
        ended = [event for event in events if isinstance(event, Finished) and event.index == output.index]
        assert [event.finish_reason for event in ended] == [output.finish_reason]
        assert "".join(delta.text for delta in deltas) == output.text
        assert sum((delta.token_ids for delta in deltas), ()) == output.token_ids
    assert events[-1].usage.output_tokens == answer.usage.output_tokens
    assert answer.usage.output_tokens == sum(len(output.token_ids) for output in answer.outputs)
    return events, answer


@pytest.mark.parametrize(
    ("ids", "options", "reason", "text", "num_tokens"),
    [
        ([A, EOS], {}, STOP, "A", 2),
        ([A, B, C], {"max_tokens": 2}, LENGTH, "AB", 2),
        ([A, B], {"stop": ["B"]}, STOP, "A", 2),
        ([EOS], {}, STOP, "", 1),
        ([A] * 600, {}, LENGTH, "A" * 509, 509),
    ],
    ids=["eos", "length", "stop text", "eos at once", "context"],
)
def test_fin_01_every_stream_ends_with_one_terminal_message(
    stack: ScriptedStack, ids: list[int], options: dict[str, Any], reason: FinishReason, text: str, num_tokens: int
) -> None:
    prompt = [10, len(ids) % 256, ids[0] % 256]
    stack.outputs[tuple(prompt)] = ids
    with stack.worker(Limits(max_model_len=512)):
        _, answer = both(stack, prompt, **options)
        stack.wait_idle()
    assert (answer.outputs[0].finish_reason, answer.text) == (reason, text)
    assert answer.usage.output_tokens == num_tokens


def test_fin_01_a_cancelled_stream_has_a_status_alone(stack: ScriptedStack) -> None:
    with stack.worker(step_seconds=0.01) as worker:
        with stack.client.stream([10, 20], token_ids=True) as stream:
            first_ids(stream)
            stream.cancel()
            seen: list[Event] = []
            with pytest.raises(RequestCancelledError):
                seen.extend(stream)
        assert not any(isinstance(event, Finished | Summary) for event in seen)
        stack.wait_idle()
        assert len(worker.plans) < 60


@pytest.mark.parametrize(
    ("ids", "options", "reason"),
    [
        ([A, B, EOS], {}, STOP),
        ([A, B, C], {}, LENGTH),
        ([A, B, C], {"stop": ["C"]}, STOP),
        ([A, B, EOS], {"ignore_eos": True}, LENGTH),
    ],
)
def test_fin_02_what_was_said_wins_over_the_length(
    stack: ScriptedStack, ids: list[int], options: dict[str, Any], reason: FinishReason
) -> None:
    prompt = [11, ids[-1] % 256]
    stack.outputs[tuple(prompt)] = ids
    with stack.worker():
        _, answer = both(stack, prompt, max_tokens=3, **options)
    assert answer.outputs[0].finish_reason is reason
    assert answer.usage.output_tokens == 3


@pytest.mark.parametrize("max_delay_ms", [None, 30])
def test_fin_03_tokens_are_counted_once(stack: ScriptedStack, max_delay_ms: int | None) -> None:
    prompt = [12, 1]
    stack.outputs[tuple(prompt)] = [*(97 + place % 26 for place in range(197)), EOS]
    with stack.worker():
        events, answer = both(stack, prompt, max_delay_ms=max_delay_ms)
    assert answer.usage.output_tokens == 198
    assert answer.usage.prompt_tokens == 2
    assert len(answer.outputs[0].token_ids) == 198
    if max_delay_ms:
        assert sum(isinstance(event, Delta) for event in events) < 100


def test_fin_03_usage_of_several_outputs_under_preemption(stack: ScriptedStack) -> None:
    """A prompt of 48 ids counts once; its cached pages are told; a preemption adds nothing to either."""
    prompt = [12, *range(100, 147)]
    before = stack.load()
    with stack.worker(Limits(num_pages=12, max_num_batched_tokens=64)):
        usages = [stack.client.generate(prompt, n=3, max_tokens=60, token_ids=True).usage for _ in range(2)]
        stack.wait_idle()
        load = stack.load()
    assert load.num_preemptions > before.num_preemptions
    assert [usage.prompt_tokens for usage in usages] == [48, 48]
    assert [usage.output_tokens for usage in usages] == [180, 180]
    assert [usage.cached_tokens for usage in usages] == [0, 32]


def test_pre_02_nothing_is_streamed_twice_or_lost(stack: ScriptedStack) -> None:
    prompts = [[13, number, *range(number, number + 10)] for number in range(4)]
    stop_prompt = [13, 100]
    stack.outputs[tuple(stop_prompt)] = [33 + place % 90 for place in range(100)]
    stop = "".join(chr(33 + place) for place in (80, 81, 82))
    before = stack.load().num_preemptions
    pause = threading.Event()

    def read(number: int) -> tuple[tuple[int, ...], Summary]:
        ids: tuple[int, ...] = ()
        summary = None
        with stack.client.stream(prompts[number], max_tokens=100, token_ids=True) as stream:
            for place, event in enumerate(stream):
                ids += event.token_ids if isinstance(event, Delta) else ()
                summary = event if isinstance(event, Summary) else None
                if number == 3 and place < 20:
                    pause.wait(0.05)  # the slow reader
        assert summary is not None
        return ids, summary

    with stack.worker(Limits(num_pages=12), step_seconds=0.002), ThreadPoolExecutor(5) as pool:
        stopped = pool.submit(stack.client.generate, stop_prompt, max_tokens=100, stop=[stop], token_ids=True)
        results = list(pool.map(read, range(4)))
        answer = stopped.result()
        assert stack.wait_idle().num_preemptions > before
    for (ids, summary), prompt in zip(results, prompts, strict=True):
        assert ids == counted(prompt, 100)
        assert summary.usage.output_tokens == 100
    assert answer.text == "".join(chr(33 + place) for place in range(80))
    assert (answer.outputs[0].stop_reason, answer.usage.output_tokens) == (stop, 83)


@pytest.mark.parametrize("max_delay_ms", [None, 10_000])
@pytest.mark.parametrize("place", [0, 3])
def test_stp_01_a_stop_text_inside_a_token_ends_the_generation(
    stack: ScriptedStack, place: int, max_delay_ms: int | None
) -> None:
    """At most the steps that were in flight come after the token, and nobody pays for them; so it is also while text is
    held back."""
    stack.outputs[14, place] = [A] * place + [260] + [A] * 40
    with stack.worker(step_seconds=0.05) as worker:
        options: dict[str, Any] = {"stop": ["KL"], "max_tokens": 40, "token_ids": True, "max_delay_ms": max_delay_ms}
        answer = stack.client.stream([14, place], **options).join()
        stack.wait_idle()
        num_steps = sum(any(each.prompt == (14, place) for each in plan.sampled) for plan in worker.plans)
    assert (answer.text, answer.outputs[0].stop_reason) == ("A" * place, "KL")
    assert answer.outputs[0].token_ids == (*[A] * place, 260)
    assert num_steps <= place + 3


NEWLINE, SECOND_EOS = 10, 259


@pytest.mark.parametrize(
    ("ids", "options", "text", "num_tokens", "reason"),
    [
        ([NEWLINE, A, A, NEWLINE, A], {"stop": ["\n"], "min_tokens": 3}, "\nAA", 4, STOP),
        ([SECOND_EOS, A, A, SECOND_EOS], {"stop_token_ids": [SECOND_EOS], "min_tokens": 2}, "AAA", 4, STOP),
        ([EOS, EOS, EOS], {"min_tokens": 2}, "AA", 3, STOP),
        ([B, B, B], {"stop_token_ids": [B], "min_tokens": 2}, "AA", 3, STOP),
        ([EOS, A, A, A, A], {"min_tokens": 4, "max_tokens": 4}, "AAAA", 4, LENGTH),
        ([EOS, A, A], {"ignore_eos": True, "max_tokens": 3, "min_tokens": 2}, "AA", 3, LENGTH),
        ([A, B, C, A, B, C], {"stop": ["BC"], "min_tokens": 2}, "A", 3, STOP),
        ([A, B, C, A, B, C], {"stop": ["BC"], "min_tokens": 3}, "ABCA", 6, STOP),
    ],
)
def test_stp_05_min_tokens_come_before_every_stop(
    stack: ScriptedStack, ids: list[int], options: dict[str, Any], text: str, num_tokens: int, reason: FinishReason
) -> None:
    """The worker takes A where a stop token would come too early."""
    prompt = [16, len(ids), *ids]
    stack.outputs[tuple(prompt)] = ids
    with stack.worker():
        _, answer = both(stack, prompt, **options)
    assert (answer.text, answer.usage.output_tokens) == (text, num_tokens)
    assert answer.outputs[0].finish_reason is reason


def test_par_01_outputs_of_one_seed_differ_and_come_again(stack: ScriptedStack) -> None:
    with stack.worker(script=plain_script):
        first, again = (stack.client.generate([17, 1], n=4, seed=11, max_tokens=9, token_ids=True) for _ in range(2))
        alone = stack.client.generate([17, 1], seed=11, max_tokens=9, token_ids=True)
        unseeded = [stack.client.generate([17, 1], max_tokens=9, token_ids=True) for _ in range(4)]
    assert [output.index for output in first.outputs] == [0, 1, 2, 3]
    assert [output.token_ids for output in first.outputs] == [output.token_ids for output in again.outputs]
    assert len({output.token_ids for output in first.outputs}) == 4
    assert first.outputs[0].token_ids == alone.outputs[0].token_ids
    assert len({answer.outputs[0].token_ids for answer in unseeded}) > 1


def test_par_02_siblings_go_on_after_the_first_has_finished(stack: ScriptedStack) -> None:
    lengths = (1, 5, 10)

    def script(prompt: tuple[int, ...], position: int, index: int, seed: int) -> int:
        return EOS if position + 1 >= lengths[index] else A + index

    with stack.worker(script=script, step_seconds=0.01):
        _, answer = both(stack, [18, 1], n=3)
        assert [len(output.token_ids) for output in answer.outputs] == list(lengths)
        assert [output.finish_reason for output in answer.outputs] == [STOP] * 3
        with stack.client.stream([18, 1], n=3) as stream:
            next(event for event in stream if isinstance(event, Finished) and event.index == 0)
            stream.cancel()
        stack.wait_idle()


def test_prm_01_empty_and_blank_prompts_disturb_nobody(stack: ScriptedStack) -> None:
    neighbours = [[15, number] for number in range(4)]
    with stack.worker(step_seconds=0.01), ThreadPoolExecutor(4) as pool:
        running = [pool.submit(stack.client.generate, each, max_tokens=60, token_ids=True) for each in neighbours]
        for bad in ({"prompt": []}, {"prompt": "", "add_special_tokens": False}):
            with pytest.raises(InvalidRequestError):
                stack.client.generate(**bad)
            stack.probe()
        with pytest.raises(InvalidRequestError):
            stack.client.chat([])
        for text in ("", "   ", "\n"):
            answer = stack.client.generate(text, max_tokens=20)
            assert answer.usage.prompt_tokens == 1 + len(text)
        for token_id in (256, 257):
            answer = stack.client.generate([token_id], max_tokens=20, token_ids=True)
            assert answer.outputs[0].token_ids == counted([token_id], 20)
            stack.probe()
        for prompt, future in zip(neighbours, running, strict=True):
            assert future.result().outputs[0].token_ids == counted(prompt, 60)
        stack.wait_idle()


def test_prm_05_one_token_requests_give_their_pages_back(stack: ScriptedStack) -> None:
    prompts = [[16, number, *range(38)] for number in range(100)]
    with stack.worker(Limits(max_model_len=256)), ThreadPoolExecutor(16) as pool:
        beside = pool.submit(stack.client.generate, [16], max_tokens=200, token_ids=True)
        answers = list(pool.map(lambda each: stack.client.generate(each, max_tokens=1, token_ids=True), prompts))
        assert [answer.outputs[0].token_ids for answer in answers] == [counted(prompt, 1) for prompt in prompts]
        assert {answer.outputs[0].finish_reason for answer in answers} == {LENGTH}
        assert beside.result().outputs[0].token_ids == counted([16], 200)
        for max_tokens in (None, 2**31 - 1):
            answer = stack.client.generate(prompts[0], max_tokens=max_tokens)
            assert answer.usage.output_tokens == 256 - 40
        with pytest.raises(InvalidRequestError):
            stack.client.generate(prompts[0], max_tokens=0)
        with pytest.raises(InvalidRequestError):
            stack.client.generate(prompts[0], max_tokens=-1)
        stack.wait_idle()


def test_can_03_cancelled_while_waiting_is_answered_at_once_and_never_computed(stack: ScriptedStack) -> None:
    long, *queued = [[17, number] for number in range(6)]
    elsewhere = stack.connect()
    with stack.worker(Limits(max_num_seqs=1), steps_before_hold=4) as worker:
        running = stack.client.stream(long, max_tokens=12, token_ids=True)
        first_ids(running)
        streams = {
            number: stack.client.stream(queued[number], max_tokens=3, token_ids=True, request_id=f"q{number}")
            for number in (0, 1, 2, 4)
        }
        wait_until(lambda: stack.load().num_requests_waiting == 4, "four wait")
        wait_until(lambda: len(worker.plans) == 4, "the worker answers no more")
        elsewhere.cancel("q1")
        ended = streams[1].join()  # though no step comes back
        assert len(worker.plans) == 4
        assert ended.outputs[0].finish_reason is FinishReason.CANCELLED
        assert ended.usage.output_tokens == 0
        streams[2].cancel()
        with pytest.raises(DeadlineExceededError):
            stack.client.generate(queued[3], max_tokens=3, timeout=0.2)
        with pytest.raises(NotFoundError):
            elsewhere.cancel("nobody")
        elsewhere.cancel("q1")  # it is over: nothing happens
        with pytest.raises(InvalidRequestError):
            elsewhere.cancel("")
        wait_until(lambda: stack.load().num_requests_waiting == 2, "two wait")
        worker.options.steps_before_hold = None
        assert running.join().outputs[0].token_ids == counted(long, 12)
        for number in (0, 4):
            assert streams[number].join().outputs[0].token_ids == counted(queued[number], 3)
        stack.wait_idle()
        # Both have deadlines of the same 30 s, told in whole milliseconds: either may come first.
        assert sorted(begun_prompts(worker)) == [tuple(long), tuple(queued[0]), tuple(queued[4])]


@pytest.mark.parametrize("request_id", ["x" * 10_000, "two\nlines", "\0"])
def test_lng_03_bad_request_ids(stack: ScriptedStack, request_id: str) -> None:
    with stack.worker(), pytest.raises(InvalidRequestError):
        stack.client.generate([18], max_tokens=1, request_id=request_id)


def test_lng_03_an_id_names_one_request_at_a_time(stack: ScriptedStack) -> None:
    other = stack.connect()
    with stack.worker(step_seconds=0.01):
        with stack.client.stream([18, 1], max_tokens=400, token_ids=True, request_id="same") as first:
            ids = first_ids(first)
            with pytest.raises(AlreadyExistsError):
                other.generate([18, 2], max_tokens=5, request_id="same")
            ids += first_ids(first, 5)
            assert ids == counted([18, 1], len(ids))
        # Used again right after the cancel, which is on its way by another connection, as often as one likes.
        for attempt in range(40):
            prompt = [18, 3, attempt]
            answer = (other, stack.client)[attempt % 2].generate(
                prompt, max_tokens=3, token_ids=True, request_id="same"
            )
            assert answer.outputs[0].token_ids == counted(prompt, 3)
            with stack.client.stream(prompt, max_tokens=400, request_id="same") as dropped:
                next(dropped)
        stack.wait_idle()
        made = [other.generate([18], max_tokens=1, request_id="") for _ in range(2)]
        assert made[0].request_id != made[1].request_id


@pytest.mark.parametrize("start", [2**31 - 60, 2**32 - 60, 2**63 - 60], ids=["int32", "uint32", "int64"])
def test_lng_03_counters_pass_their_borders(start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step ids, epochs and query ids beyond what 31, 32 or 63 bits hold change nothing, nor do keys up to the last."""
    monkeypatch.setattr(join_terms, "FIRST_STEP_ID", start)
    with EngineThread() as engine, RawFront(engine.front_endpoint) as front:
        front._next_key, front._next_query = min(start, MAX_FRONT_KEY - 300), start
        worker = ScriptedWorker(engine.worker_endpoint)
        worker._epoch = start
        with worker:
            front.wait_ready()
            prompts = {front.submit([number, number + 1], max_tokens=3): number for number in range(200)}
            front.wait_over(*prompts)
            for key, number in prompts.items():
                expected = [plain_script((number, number + 1), position, 0, 0) for position in range(3)]
                assert front.requests[key].output() == expected
            assert worker.plans[0].step_id == start
            assert worker.plans[-1].step_id > start + 60
            engine.wait_clean()
            assert front.query(load=True).query_id > start
