"""The OpenAI-compatible gateway, asked by OpenAI's own client, in front of the whole product with a scripted worker."""

import asyncio
import gc
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import openai
import pytest
from pagewire_client.cli.app import app
from pagewire_client.errors import ServerError
from pagewire_client.gateway.answer import whole
from pagewire_client.gateway.bodies import CompletionBody
from pydantic import ValidationError
from support.conditions import wait_until
from support.gateway_process import GatewayProcess
from support.scheduler_process import SchedulerProcess
from support.scripted_rows import Limits
from support.scripted_stack import ScriptedStack
from support.toy_tokenizer import BOS
from typer.testing import CliRunner

SAID = "Hello, world: ďả."
GREETING: list[Any] = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def stack() -> Iterator[ScriptedStack]:
    with ScriptedStack() as running, running.worker(Limits(num_pages=128)):
        rendered = running.client.tokenize(GREETING)
        running.outputs[rendered] = list(SAID.encode())
        running.outputs[(BOS, *b"abc")] = list(b"defghi")
        running.outputs[1, 2] = list(b"numbers")
        yield running


@pytest.fixture(scope="module")
def gateway(stack: ScriptedStack) -> Iterator[GatewayProcess]:
    with GatewayProcess(stack.scheduler.target) as running:
        yield running


@pytest.fixture(scope="module")
def client(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="anything", max_retries=0) as found:
        yield found


def test_models_and_health(client: openai.OpenAI, gateway: GatewayProcess) -> None:
    assert [model.id for model in client.models.list()] == ["toy"]
    assert client.models.retrieve("toy").id == "toy"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.models.retrieve("somebody/else")
    assert unknown.value.code == "model_not_found"
    assert gateway.is_serving()


def test_it_stops_when_told_and_says_when_its_server_is_gone() -> None:
    with SchedulerProcess() as scheduler, GatewayProcess(scheduler.target, scheduler.start_worker) as gateway:
        scheduler.process.kill()
        scheduler.process.wait(10)
        wait_until(lambda: not gateway.is_serving(), "it is not healthy")
        assert gateway.stop() == 0


def test_a_port_in_use_is_one_line(gateway: GatewayProcess) -> None:
    words = ["gateway", "--port", gateway.url.rpartition(":")[2]]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: --port {words[-1]}: cannot listen on 127.0.0.1:")


def test_a_chat_whole_and_streamed(client: openai.OpenAI, stack: ScriptedStack) -> None:
    answer = client.chat.completions.create(model="toy", messages=GREETING, max_completion_tokens=60)
    assert answer.choices[0].message.content == SAID
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(SAID.encode()) + 1
    assert answer.usage.prompt_tokens == len(stack.client.tokenize(GREETING))
    options: Any = {"include_usage": True}
    chunks = list(client.chat.completions.create(model="toy", messages=GREETING, stream=True, stream_options=options))
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == SAID
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == answer.usage.total_tokens


def test_completions_of_texts_and_of_token_ids(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="toy", prompt="abc")
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("defghi", "stop")
    answer = client.completions.create(model="toy", prompt=[[1, 2], [BOS, *b"abc"]], n=2, temperature=0)
    assert [choice.text for choice in answer.choices] == ["numbers"] * 2 + ["defghi"] * 2
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    texts = dict.fromkeys(range(4), "")
    for chunk in client.completions.create(model="toy", prompt=[[1, 2], [BOS, *b"abc"]], n=2, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert list(texts.values()) == ["numbers"] * 2 + ["defghi"] * 2


def test_stop_length_and_n(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="toy", prompt="abc", stop=["gh"], max_tokens=50)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("def", "stop")
    answer = client.completions.create(model="toy", prompt="abc", max_tokens=2, n=3)
    assert [(choice.text, choice.finish_reason) for choice in answer.choices] == [("de", "length")] * 3


@pytest.mark.parametrize("streams", [False, True])
def test_log_probabilities(client: openai.OpenAI, streams: bool) -> None:
    options: dict[str, Any] = {"model": "toy", "messages": GREETING, "logprobs": True, "top_logprobs": 2}
    if streams:
        chunks = client.chat.completions.create(stream=True, **options)
        parts = [chunk.choices[0].logprobs for chunk in chunks]
    else:
        parts = [client.chat.completions.create(**options).choices[0].logprobs]
    content = [entry for part in parts if part is not None for entry in part.content or ()]
    assert [entry.token for entry in content[:5]] == list("Hello")
    assert content[0].bytes == [ord("H")]
    assert [len(entry.top_logprobs) for entry in content] == [2] * len(content)
    assert content[0].top_logprobs[0].logprob == content[0].logprob
    found = client.completions.create(model="toy", prompt="abc", logprobs=1).choices[0].logprobs
    assert found is not None
    assert (found.tokens or [])[:3] == ["d", "e", "f"]
    assert (found.text_offset or [])[:3] == [0, 1, 2]


def test_forms_and_tools_reach_the_server(client: openai.OpenAI, stack: ScriptedStack) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "no such type"}}}
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="toy", messages=GREETING, response_format=form)
    assert refused.value.param == "json_schema"
    tools: Any = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    answer = client.chat.completions.create(model="toy", messages=GREETING, tools=tools, max_completion_tokens=1)
    assert answer.usage is not None


def test_errors_have_openais_shape(client: openai.OpenAI, gateway: GatewayProcess, stack: ScriptedStack) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="another", messages=GREETING)
    assert missing.value.code == "model_not_found"
    for streams in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(model="toy", prompt="abc", temperature=-1, stream=streams)
        assert (refused.value.param, refused.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="toy", prompt="abc", suffix="x")
    assert "suffix" in str(refused.value)
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="toy", messages=[])
    assert refused.value.param == "messages"
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="toy", prompt="abc", logit_bias={"1": 1}, max_tokens=-5)
    assert refused.value.param == "max_tokens"
    for body, status in ((b"{", 400), (b"[]", 400), (b"[" * 100_000, 400), (b" " * (17 << 20), 413)):
        with pytest.raises((urllib.error.HTTPError, urllib.error.URLError)) as wrong:
            post(gateway, body)
        if isinstance(wrong.value, urllib.error.HTTPError):
            assert error_of(wrong.value, status)["type"] == "invalid_request_error"
    stack.probe()


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"prompt": "\ud800"}, "prompt"),
        ({"prompt": "abc", "stop": ["\udfff"]}, "stop"),
        ({"prompt": "abc", "response_format": {"type": "json_object", "\ud800": 1}}, "response_format"),
        ({"prompt": "abc", "suffix": "x"}, "suffix"),
        ({"prompt": []}, "prompt"),
    ],
)
def test_what_cannot_be_sent_on_is_refused_by_name(gateway: GatewayProcess, part: dict[str, Any], param: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as wrong:
        post(gateway, json.dumps({"model": "toy", **part}).encode())
    assert error_of(wrong.value, 400)["param"] == param


@pytest.mark.parametrize("name", ["x-request-id", "authorization"])
def test_a_header_that_is_no_metadata_is_refused_by_name(gateway: GatewayProcess, name: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as wrong:
        post(gateway, b'{"model": "toy", "prompt": "abc"}', {name: "\u00e4"})
    assert error_of(wrong.value, 400)["param"] == name


def test_a_body_in_chunks_may_not_be_larger_either(gateway: GatewayProcess) -> None:
    host, _, port = gateway.url.removeprefix("http://").rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    pieces = [b" " * (1 << 20)] * 16 + [b"x"]
    connection.request("POST", "/v1/completions", iter(pieces), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["error"]["type"]) == (413, "invalid_request_error")
    connection.close()


def test_a_requests_id_is_the_callers_and_told_in_every_answer(client: openai.OpenAI, stack: ScriptedStack) -> None:
    named = {"X-Request-Id": "mine"}
    for streams in (False, True):
        raw = client.completions.with_raw_response.create(
            model="toy", prompt=["abc", "abc"], max_tokens=2, stream=streams, extra_headers=named
        )
        assert raw.headers["x-request-id"] == "mine"
        if streams:
            assert {chunk.id for chunk in raw.parse()} == {"cmpl-mine"}
        assert len(stack.client.explain("mine")) == len(stack.client.explain("mine-1")) > 0
    unnamed = client.completions.with_raw_response.create(model="toy", prompt="abc", max_tokens=2)
    assert stack.client.explain(unnamed.headers["x-request-id"])
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="toy", prompt="abc", temperature=-1, extra_headers=named)
    assert refused.value.request_id == "mine"
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="toy", prompt="abc", extra_headers={"X-Request-Id": "x" * 257})
    assert refused.value.param == "request_id"


def test_messages_without_content_and_calls_of_tools_are_text(client: openai.OpenAI, stack: ScriptedStack) -> None:
    """As histories have them; what was called is not lost."""
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    history: list[Any] = [
        *GREETING,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant", "content": None},
        {"role": "tool", "tool_call_id": "1", "content": "a wall"},
    ]
    said = [
        *GREETING,
        *(
            {"role": role, "content": text}
            for role, text in (
                ("assistant", r'{"name":"look","arguments":"{\"at\": 1}"}'),
                ("assistant", ""),
                ("tool", "a wall"),
            )
        ),
    ]
    answer = client.chat.completions.create(model="toy", messages=history, max_completion_tokens=2)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(stack.client.tokenize(said))


def test_no_such_route_or_method(gateway: GatewayProcess) -> None:
    for path, status in (("v1/nothing", 404), ("v1/completions", 405)):
        with pytest.raises(urllib.error.HTTPError) as wrong:
            urllib.request.urlopen(f"{gateway.url}/{path}", timeout=10)
        assert error_of(wrong.value, status)["type"] == "invalid_request_error"


async def test_a_prompt_that_fails_ends_the_others() -> None:
    ended = asyncio.Event()

    async def once(message: str, metadata: object) -> None:
        if message == "fails":
            raise ServerError("no", code=grpc.StatusCode.INVALID_ARGUMENT)
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    caller: Any = SimpleNamespace(receive=asyncio.Event().wait)
    dialect: Any = SimpleNamespace(upstream=SimpleNamespace(once=once), metadata=())
    messages: Any = ["runs", "fails"]
    with pytest.raises(ServerError):
        await whole(caller, dialect, messages)
    await asyncio.wait_for(ended.wait(), 5)


async def test_a_caller_that_hangs_up_leaves_nothing_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def once(message: str, metadata: object) -> None:
        await asyncio.Event().wait()

    async def hung_up() -> dict[str, str]:
        return {"type": "http.disconnect"}

    dialect: Any = SimpleNamespace(upstream=SimpleNamespace(once=once), metadata=())
    messages: Any = ["runs", "runs too"]
    caller: Any = SimpleNamespace(receive=hung_up)
    assert (await whole(caller, dialect, messages)).status_code == 499
    for _ in range(5):
        await asyncio.sleep(0)  # what was cancelled ends, and whoever awaits it
    gc.collect()
    assert caplog.text == ""


def test_a_body_that_is_no_json_object_says_what_is_expected(gateway: GatewayProcess) -> None:
    for body, kind in ((b'{"model": "toy"}', "application/x-www-form-urlencoded"), (b"[]", "application/json")):
        with pytest.raises(urllib.error.HTTPError) as wrong:
            post(gateway, body, {"Content-Type": kind})
        assert "Content-Type: application/json" in error_of(wrong.value, 400)["message"]


def test_a_body_full_of_faults_is_one_fault(gateway: GatewayProcess) -> None:
    with pytest.raises(ValidationError) as wrong:
        CompletionBody.model_validate({"model": "toy", "prompt": [{}] * 1000, "stop_token_ids": ["a"] * 1000})
    assert wrong.value.error_count() < 10
    with pytest.raises(urllib.error.HTTPError) as refused:
        post(gateway, b'{"model": "toy", "\\ud800": "\\ud800", "prompt": "a"}')
    assert error_of(refused.value, 400)["param"] == "?"


def post(gateway: GatewayProcess, body: bytes, headers: dict[str, str] | None = None) -> None:
    found = {"Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(f"{gateway.url}/v1/completions", body, found)
    urllib.request.urlopen(request, timeout=10).close()


def error_of(failure: urllib.error.HTTPError, status: int) -> dict[str, Any]:
    with failure:
        assert failure.code == status
        return dict(json.loads(failure.read())["error"])


def test_a_caller_that_hangs_up_ends_its_request(client: openai.OpenAI, stack: ScriptedStack) -> None:
    stack.outputs[7, 7] = [65] * 450
    with client.completions.create(model="toy", prompt=[7, 7], max_tokens=450, stream=True) as stream:
        next(iter(stream))
    stack.wait_idle()
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.05).completions.create(model="toy", prompt=[8, 8], max_tokens=480, n=8)
    wait_until(lambda: stack.load().num_requests_running == 0, "it ended")
    stack.wait_idle()
