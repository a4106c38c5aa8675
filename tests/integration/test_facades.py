"""Services in other people's words, asked by their own programs: SMG's gateway, Triton's client."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest
from pagewire.kserve.v2 import inference_pb2, inference_pb2_grpc
from pagewire_client import PagewireError
from pagewire_client.stack import free_ports
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2, vllm_engine_pb2_grpc
from support.conditions import wait_until
from support.scripted_rows import Limits
from support.scripted_stack import PROBE, PROBE_ANSWER, ScriptedStack
from support.toy_tokenizer import BOS, EOS

GREETING: list[Any] = [{"role": "user", "content": "hi"}]
SAID = "Hello, world"


@pytest.fixture(scope="module")
def stack() -> Iterator[ScriptedStack]:
    with ScriptedStack() as running, running.worker(Limits(), step_seconds=0.002):
        running.outputs[running.client.tokenize(GREETING)] = list(SAID.encode())
        running.outputs[(BOS, *b"abc")] = list(b"defghi")
        running.outputs[1, 2] = list(b"numbers")
        yield running


@pytest.fixture(scope="module")
def smg(stack: ScriptedStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """OpenAI's client before SMG before us."""
    port, metrics_port = free_ports(2)
    log = tmp_path_factory.mktemp("smg") / "log"
    words = ["--host", "127.0.0.1", "--port", str(port), "--worker-urls", f"grpc://{stack.scheduler.target}"]
    words += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]
    with log.open("wb") as written:
        process = subprocess.Popen([sys.executable, "-m", "smg", "launch", *words], stdout=written, stderr=written)
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=20)
    try:
        wait_until(lambda: _is_served(client), "SMG serves our model", 40)
        yield client
    finally:
        client.close()
        process.kill()
        process.wait(10)


def _is_served(client: openai.OpenAI) -> bool:
    """It lists a model before it has its tokenizer."""
    try:
        return bool(client.chat.completions.create(model="toy", messages=GREETING, max_tokens=1).choices)
    except openai.APIError:
        return False


def test_smg_serves_openais_chat_over_us(smg: openai.OpenAI) -> None:
    answer = smg.chat.completions.create(model="toy", messages=GREETING, max_tokens=50)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (SAID, "stop")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(SAID) + 1
    chunks = smg.chat.completions.create(model="toy", messages=GREETING, max_tokens=50, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == SAID


def test_a_caller_that_leaves_smg_ends_the_request_here(smg: openai.OpenAI, stack: ScriptedStack) -> None:
    long: list[Any] = [{"role": "user", "content": "go on"}]
    stack.outputs[stack.client.tokenize(long)] = [65] * 480
    before = stack.load()
    with smg.chat.completions.create(model="toy", messages=long, max_tokens=400, stream=True) as stream:
        next(iter(stream))
    load = stack.wait_idle()
    assert load.num_output_tokens > before.num_output_tokens


def test_vllm_engine_generates_aborts_and_tells_of_itself(stack: ScriptedStack) -> None:
    with grpc.insecure_channel(stack.scheduler.target) as channel:
        stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
        assert stub.HealthCheck(vllm_engine_pb2.HealthCheckRequest(), timeout=10).healthy
        described = stub.GetModelInfo(vllm_engine_pb2.GetModelInfoRequest(), timeout=10)
        assert (described.served_model_name, list(described.eos_token_ids)) == ("toy", [EOS])
        assert stub.GetServerInfo(vllm_engine_pb2.GetServerInfoRequest(), timeout=10).block_size == 16
        loads = stub.GetLoads(vllm_engine_pb2.GetLoadsRequest(), timeout=10).loads
        assert loads[0].max_total_num_tokens == 64 * 16
        request = vllm_engine_pb2.GenerateRequest(
            request_id="vllm", tokenized={"input_ids": PROBE}, sampling_params={"logprobs": 2, "n": 2, "max_tokens": 9}
        )
        answers = [answer.complete for answer in stub.Generate(request, timeout=10)]
        assert sorted(answer.index for answer in answers) == [0, 1]
        assert bytes(answers[0].output_ids[:-1]).decode() == PROBE_ANSWER
        assert (answers[0].finish_reason, answers[0].matched_token_id, answers[0].prompt_tokens) == ("stop", EOS, 3)
        assert [len(top.values) for top in answers[0].output_logprobs.top_logprobs] == [2] * 6
        assert answers[0].output_logprobs.token_logprobs[0] == -1.0
        running = stub.Generate(
            vllm_engine_pb2.GenerateRequest(
                request_id="long", tokenized={"input_ids": [9, 9]}, sampling_params={"max_tokens": 400}, stream=True
            ),
            timeout=20,
        )
        assert next(running).chunk.token_ids
        stub.Abort(vllm_engine_pb2.AbortRequest(request_ids=["long", "unknown"]), timeout=10)
        assert [answer.complete.finish_reason for answer in running if answer.HasField("complete")] == ["abort"]
        wrong = vllm_engine_pb2.GenerateRequest(text="a", kv_transfer_params_json="{}")
        with pytest.raises(grpc.RpcError) as refused:
            list(stub.Generate(wrong, timeout=10))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "kv_transfer_params_json" in str(refused.value.details())
        # Nothing is made for outputs that are not there.
        many = vllm_engine_pb2.GenerateRequest(text="a", sampling_params={"n": 2**32 - 1})
        with pytest.raises(grpc.RpcError, match=r"output.n: must lie in \[1, 16\]"):
            list(stub.Generate(many, timeout=10))
        files = [list(stub.GetTokenizer(common_pb2.GetTokenizerRequest(), timeout=10)) for _ in range(2)]
        assert files[0] == files[1]
        assert files[0][-1].sha256
    stack.wait_idle()


def test_tritons_client_infers_and_streams(stack: ScriptedStack) -> None:
    program = Path(__file__).parents[1] / "support" / "triton_calls.py"
    done = subprocess.run(
        [sys.executable, str(program), stack.scheduler.target], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    heard = json.loads(done.stdout)
    assert heard["live"]
    assert heard["ready"]
    assert not heard["other"]
    assert heard["server"] == "pagewire"
    assert heard["inputs"] == ["text_input", "input_ids", "sampling_parameters"]
    assert heard["once"] == [["defghi"], ["stop"], "one"]
    assert heard["output_tokens"] == 7
    assert heard["ids"] == ["num", "num"]
    assert "".join(part["text"] for part in heard["streamed"]) == "defghi"
    assert heard["streamed"][-1]["reason"] == "stop"
    assert "temperature" in heard["failed"][0]["error"]
    names = ("two texts", "no such option", "no such input", "out of range")
    assert [heard[name] for name in names] == ["StatusCode.INVALID_ARGUMENT"] * 4


def test_broken_tensors_are_refused_one_by_one(stack: ScriptedStack) -> None:
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1]}
    with grpc.insecure_channel(stack.scheduler.target) as channel:
        stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        for raw in (b"\xff", b"\x09\0\0\0ab", b"\x01\0\0\0\xff", b"\x00\0\0\0\x00\0\0\0"):
            request = inference_pb2.ModelInferRequest(inputs=[tensor], raw_input_contents=[raw])
            with pytest.raises(grpc.RpcError) as refused:
                stub.ModelInfer(request, timeout=10)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        text = {**tensor, "contents": {"bytes_contents": [b"a"]}}
        numbers = {"name": "input_ids", "datatype": "INT32", "shape": [1], "contents": {"int_contents": [1]}}
        for inputs, options, field in (
            ([{**text, "shape": [2**62] * 20_000}], b"{}", "inputs.text_input.shape"),
            ([{**text, "shape": [-1, -1]}], b"{}", "inputs.text_input.shape"),
            ([text, text], b"{}", "inputs"),
            ([text, numbers], b"{}", "inputs"),
            ([text], b'{"stop": {"a": 1}}', "parameters.stop"),
            ([text], b'{"\\ud800": 1}', "parameters.?"),
        ):
            sampling = {**tensor, "name": "sampling_parameters", "contents": {"bytes_contents": [options]}}
            with pytest.raises(grpc.RpcError, match=re.escape(field)) as refused:
                stub.ModelInfer(inference_pb2.ModelInferRequest(inputs=[*inputs, sampling]), timeout=10)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(PagewireError):
        stack.client.generate([1], model="other")
    stack.probe()
