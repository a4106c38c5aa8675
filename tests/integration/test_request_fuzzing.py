"""Any request whatever: no crash, exactly one ending, the stream equal to the unary answer; any bytes: a status."""

from array import array
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pagewire.v1 import generation_pb2 as pb
from pagewire.v1 import generation_pb2_grpc
from support.scripted_rows import Limits
from support.scripted_stack import ScriptedStack

from scheduler_svc.front.logprobs import join_logprobs

METHODS = ("Generate", "GenerateOnce", "GenerateMany", "ResumeGenerate", "CancelRequest", "GetRequest", "Tokenize")
SERVICE = "/pagewire.v1.GenerationService/"
MAX_LEN = 96
TIMEOUT = 20


@pytest.fixture(scope="module")
def stub() -> Iterator[Any]:
    limits = Limits(num_pages=64, page_size=16, max_model_len=MAX_LEN)
    with (
        ScriptedStack() as stack,
        stack.worker(limits),
        grpc.insecure_channel(stack.scheduler.target) as channel,
    ):
        yield generation_pb2_grpc.GenerationServiceStub(channel), channel
        stack.probe()
        stack.wait_idle()


def sometimes(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly unset: most requests should be accepted."""
    return st.integers(0, 9).flatmap(lambda drawn: values if drawn > 7 else st.none())


def message(kind: type[Any], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A message of this type with any of the fields; None stays unset."""
    return st.fixed_dictionaries(fields).map(lambda found: kind(**{k: v for k, v in found.items() if v is not None}))


floats = st.one_of(st.floats(0, 1, width=32, exclude_min=True), st.floats(0, 2, width=32), st.floats(width=32))
counts = st.one_of(st.integers(0, 20), st.integers(0, 2**32 - 1))
texts = st.text(max_size=40)
ids = st.lists(st.one_of(st.integers(0, 299), st.integers(0, 2**32 - 1)), max_size=100)
sampling = message(
    pb.SamplingOptions,
    temperature=sometimes(floats),
    top_p=sometimes(floats),
    top_k=sometimes(counts),
    min_p=sometimes(floats),
    seed=st.integers(0, 2**64 - 1),
    frequency_penalty=sometimes(floats),
    presence_penalty=sometimes(floats),
    repetition_penalty=sometimes(floats),
    logit_bias=sometimes(
        st.dictionaries(st.one_of(st.integers(0, 299), st.integers(0, 2**32 - 1)), floats, max_size=4)
    ),
    allowed_token_ids=sometimes(st.lists(st.integers(0, 301), max_size=6)),
    bad_words=sometimes(st.lists(st.text(alphabet="abK é\0", max_size=4), max_size=3)),
)
stop = message(
    pb.StopOptions,
    max_tokens=st.one_of(st.integers(1, 30), sometimes(counts)),
    min_tokens=sometimes(st.one_of(st.integers(0, 12), counts)),
    stop=sometimes(st.lists(st.text(alphabet="abAB\ufffd é", max_size=3), max_size=18)),
    stop_token_ids=sometimes(st.lists(st.integers(0, 310), max_size=70)),
    ignore_eos=sometimes(st.booleans()),
    include_stop=sometimes(st.booleans()),
)
output = message(
    pb.OutputOptions,
    n=sometimes(st.integers(0, 18)),
    logprobs=sometimes(st.integers(0, 21)),
    prompt_logprobs=sometimes(st.integers(0, 21)),
    text=sometimes(st.booleans()),
    token_ids=sometimes(st.booleans()),
    prompt_token_ids=sometimes(st.booleans()),
    skip_special_tokens=sometimes(st.booleans()),
    progress_events=sometimes(st.booleans()),
    max_delay_ms=sometimes(st.one_of(st.integers(0, 5), st.integers(10_001, 2**32 - 1))),
)
scheduling = message(
    pb.SchedulingOptions,
    priority=sometimes(st.integers(-(2**31), 2**31 - 1)),
    cache_salt=sometimes(st.text(max_size=300)),
    bypass_prefix_cache=sometimes(st.booleans()),
    time_limit_ms=sometimes(st.sampled_from([0, 60_000, 2**64 - 1])),
    resume_grace_ms=sometimes(st.sampled_from([0, 1, 3_600_001])),
)
options = message(
    pb.PromptOptions,
    truncate_prompt_tokens=sometimes(st.one_of(st.integers(0, 100), counts)),
    add_special_tokens=sometimes(st.booleans()),
    continue_final_message=sometimes(st.booleans()),
)
structured = st.sampled_from(
    [
        {},
        {"json_object": False},
        {"json_object": True},
        {"json_schema": '{"type": "integer"}'},
        {"json_schema": '{"type": "objct"}'},
        {"json_schema": '{"$ref": "#"}'},
        {"regex": "a[b-d]+"},
        {"regex": "("},
        {"choice": pb.StructuredOutput.Choice(choices=["yes", "né"])},
        {"choice": pb.StructuredOutput.Choice()},
        {"grammar": 'root ::= "a" | "b" root'},
        {"grammar": "no root"},
    ]
).map(lambda found: pb.StructuredOutput(**found))
chat = message(
    pb.Chat,
    messages=st.lists(
        message(pb.ChatMessage, role=st.sampled_from([*["user", "assistant"] * 6, "", "x" * 70]), content=texts),
        max_size=4,
    ),
    add_generation_prompt=sometimes(st.booleans()),
    template_variables=sometimes(st.dictionaries(texts, st.sampled_from(["1", "{", '"a"']), max_size=2)),
)
packed_ids = st.one_of(
    st.binary(max_size=9), st.binary(min_size=1).map(lambda found: array("I", list(found)).tobytes())
)
prompts = st.one_of(
    st.fixed_dictionaries({"text": texts}),
    st.fixed_dictionaries({"text": st.text(min_size=1, max_size=60)}),
    st.fixed_dictionaries(
        {"token_ids": st.lists(st.integers(0, 255), min_size=1).map(lambda found: pb.TokenIds(ids=found))}
    ),
    st.fixed_dictionaries({"token_ids": ids.map(lambda found: pb.TokenIds(ids=found))}),
    st.fixed_dictionaries({"token_ids": packed_ids.map(lambda found: pb.TokenIds(packed_ids=found))}),
    st.fixed_dictionaries({"chat": chat}),
    st.just({}),
)


@st.composite
def requests(draw: st.DrawFn) -> pb.GenerateRequest:
    parts = {
        "prompt_options": draw(sometimes(options)),
        "sampling": draw(sampling),
        "stop": draw(stop),
        "output": draw(sometimes(output)),
        "scheduling": draw(sometimes(scheduling)),
        "structured": draw(sometimes(structured)),
        "model": draw(st.sampled_from([*[""] * 15, "toy", "other"])),
        "adapter": draw(st.sampled_from([*[""] * 15, "x"])),
    }
    return pb.GenerateRequest(**draw(prompts), **{name: part for name, part in parts.items() if part is not None})


def streamed(stub: Any, request: pb.GenerateRequest) -> pb.GenerateOnceResponse:
    """The stream joined as its caller would join it."""
    joined = pb.GenerateOnceResponse()
    joined.outputs.extend(pb.Output(index=index) for index in range(request.output.n or 1))
    for event in stub.Generate(request, timeout=TIMEOUT):
        assert not joined.HasField("summary"), "something follows the summary"
        kind = event.WhichOneof("event")
        if kind == "summary":
            joined.summary.CopyFrom(event.summary)
        elif kind == "finished":
            assert not joined.outputs[event.finished.index].HasField("finished"), "two endings"
            joined.outputs[event.finished.index].finished.CopyFrom(event.finished)
        elif kind == "delta":
            assert not joined.outputs[event.delta.index].HasField("finished"), "text behind the ending"
            joined.outputs[event.delta.index].text += event.delta.text
            joined.outputs[event.delta.index].token_ids.extend(event.delta.token_ids)
            if event.delta.HasField("logprobs"):
                join_logprobs(joined.outputs[event.delta.index].logprobs, event.delta.logprobs)
        elif kind == "prompt_logprobs":
            join_logprobs(joined.prompt_logprobs, event.prompt_logprobs.logprobs)
        else:
            assert request.output.progress_events
    assert joined.HasField("summary")
    return joined


def refusal(error: Any) -> tuple[Any, str]:
    """Code and details of a refusal; anything but the caller's fault is a fault of ours."""
    if error.code() not in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND):
        raise error
    return error.code(), str(error.details())


def outcome(call: Any) -> Any:
    """An answer, or the code and details of a refusal."""
    try:
        answer = call()
    except grpc.RpcError as error:
        return refusal(error)
    answer.ClearField("request_id")
    answer.summary.ClearField("timings")
    answer.summary.usage.ClearField("cached_tokens")
    return answer


def check(stub: Any, request: pb.GenerateRequest) -> None:
    assert outcome(lambda: streamed(stub, request)) == outcome(
        lambda: stub.GenerateOnce(pb.GenerateOnceRequest(request=request), timeout=TIMEOUT)
    )


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(request=requests())
def test_any_request_ends_once_and_the_same_streamed_or_not(stub: Any, request: pb.GenerateRequest) -> None:
    check(stub[0], request)


@pytest.mark.soak
@settings(max_examples=5_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(request=requests())
def test_ten_thousand_requests(stub: Any, request: pb.GenerateRequest) -> None:
    check(stub[0], request)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    method=st.sampled_from(METHODS),
    content=st.one_of(st.binary(max_size=60), requests().map(lambda each: each.SerializeToString()[:-1])),
)
def test_any_bytes_get_a_status(stub: Any, method: str, content: bytes) -> None:
    channel = stub[1]
    make = channel.stream_stream if method == "GenerateMany" else channel.unary_stream
    call = make(SERVICE + method)(iter([content]) if method == "GenerateMany" else content, timeout=TIMEOUT)
    try:
        for _ in call:
            pass
    except grpc.RpcError as error:
        refusal(error)
