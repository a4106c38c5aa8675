"""Known faults of several outputs and of structured output, each by its id, through the whole product."""

from collections.abc import Iterator
from typing import Any

import pytest
from pagewire_client import Finished, FinishReason, InvalidRequestError
from support.scripted_rows import Limits
from support.scripted_stack import ScriptedStack, counted, first_ids

EOS = 257


@pytest.fixture(scope="module")
def stack() -> Iterator[ScriptedStack]:
    with ScriptedStack() as running:
        yield running


def test_par_02_a_cancel_stops_those_that_still_run(stack: ScriptedStack) -> None:
    def first_ends(prompt: tuple[int, ...], position: int, index: int, seed: int) -> int:
        return EOS if index == 0 else 70

    with stack.worker(script=first_ends, step_seconds=0.005):
        with stack.client.stream([1, 3], n=3, request_id="siblings", token_ids=True) as stream:
            finished = []
            for event in stream:
                if isinstance(event, Finished):
                    finished.append(event)
                    if len(finished) == 1:
                        stack.client.cancel("siblings")
        reasons = {event.index: event.finish_reason for event in finished}
        assert reasons == {0: FinishReason.STOP, 1: FinishReason.CANCELLED, 2: FinishReason.CANCELLED}
        stack.wait_idle()


def test_par_04_more_outputs_than_rows_and_pages_end_in_waves(stack: ScriptedStack) -> None:
    prompt = list(range(20))
    with stack.worker(Limits(max_num_seqs=4, page_size=16, num_pages=20)):
        answer = stack.client.generate(prompt, n=16, max_tokens=30, token_ids=True)
        assert [output.token_ids for output in answer.outputs] == [counted(prompt, 30)] * 16
        for n in (0, 17, 1_000_000, -1):
            with pytest.raises(InvalidRequestError, match=r"output\.n"):
                stack.client.generate(prompt, n=n)
        stack.probe()
        stack.wait_idle()


HOSTILE: list[dict[str, Any]] = [
    {"json_schema": "{"},
    {"json_schema": '{"type": "objct"}'},
    {"json_schema": '{"a":' * 10_000},
    {"json_schema": '{"$ref": "#"}'},
    {"json_schema": {"$defs": {"n": {"properties": {"c": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"}},
    {"json_schema": {"items": {"type": "string", "pattern": "a+"}, "uniqueItems": True}},
    {"json_schema": "x" * 5_000_000},
    {"regex": "("},
    {"regex": "(a+)+$" * 1000},
    {"regex": "(a+)+" * 1000},
    {"choice": []},
    {"grammar": "no root"},
]


def test_str_01_hostile_forms_are_refused_at_the_door(stack: ScriptedStack) -> None:
    with stack.worker(step_seconds=0.002):
        for constraint in HOSTILE:
            streams = [stack.client.stream([5, place], token_ids=True, max_tokens=40) for place in range(5)]
            begun = [first_ids(stream) for stream in streams]
            with pytest.raises(InvalidRequestError) as caught:
                stack.client.generate("x", timeout=2, **constraint)
            (kind,) = constraint
            assert [violation.field for violation in caught.value.field_violations] == [f"structured.{kind}"]
            stack.probe()
            answers = [stream.join().outputs[0].token_ids for stream in streams]
            assert answers == [counted([5, place], 40) for place in range(5)]
            assert all(begun)
        stack.wait_idle()


def test_a_grammar_travels_with_each_row_that_begins(stack: ScriptedStack) -> None:
    with stack.worker() as worker:
        stack.client.generate([7, 8, 9], n=2, choice=["a", "b"], ignore_eos=True, max_tokens=3)
        stack.client.generate([7, 8, 9], json_object=False, max_tokens=3)
        plans = [recorded.plan for recorded in worker.plans if recorded.plan.new_rows.rows]
    texts = [grammar.text for plan in plans for grammar in plan.grammars]
    assert texts
    assert all("start: /" in text for text in texts)
    assert sum(len(plan.new_rows.grammar_ids) for plan in plans) == 4 * 2
