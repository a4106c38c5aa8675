"""Commands against a gRPC server: what they print, and their exit codes."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from pagewire.v1 import generation_pb2
from pagewire_client import Client, StackError, model_path
from pagewire_client.cli import demo, generation, local, output, serving
from pagewire_client.cli.app import app
from pagewire_client.cli.arguments import RequestOptions
from pagewire_client.stack import LocalStack
from support.fake_server import Failure, FakeServer
from typer.testing import CliRunner, Result


@pytest.fixture(scope="module")
def shared_server() -> Iterator[FakeServer]:
    with FakeServer() as fake:
        yield fake


@pytest.fixture
def server(shared_server: FakeServer) -> FakeServer:
    shared_server.failures.clear()
    shared_server.requests.clear()
    shared_server.set_serving(True)
    return shared_server


def run(server: FakeServer, *words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, list(words), input=stdin, env={"PAGEWIRE_TARGET": server.target})


def lines_of(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_generate_streams_text(server: FakeServer) -> None:
    result = run(server, "generate", "one two", "--temperature", "0", "--stop", "a", "--stop", "b", "--seed", "5")
    assert (result.exit_code, result.stdout) == (0, "ONE TWO\n")
    sent = server.requests[0]
    assert sent.sampling.HasField("temperature")
    assert (sent.sampling.temperature, sent.sampling.seed, list(sent.stop.stop)) == (0.0, 5, ["a", "b"])
    assert not sent.stop.HasField("ignore_eos")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--json-schema", '{"type": "null"}'), {"json_schema": '{"type": "null"}'}),
        (("--json-object",), {"json_object": True}),
        (("--regex", "a+"), {"regex": "a+"}),
        (("--choice", "a", "--choice", "b"), {"choice": {"choices": ["a", "b"]}}),
        (("--grammar", 'root ::= "a"'), {"grammar": 'root ::= "a"'}),
    ],
)
def test_forms_reach_the_server(server: FakeServer, words: tuple[str, ...], expected: dict[str, Any]) -> None:
    assert run(server, "generate", "a", *words).exit_code == 0
    assert server.requests[-1].structured == generation_pb2.StructuredOutput(**expected)


def test_options_on_tokens_reach_the_server(server: FakeServer) -> None:
    words = ("--logit-bias", "15=-2.5", "--logit-bias", "7=1", "--allowed-token-ids", "7", "--bad-words", "no")
    result = run(server, "generate", "a", *words, "--min-tokens", "2", "--logprobs", "0", "--prompt-logprobs", "3")
    assert result.exit_code == 0
    request = server.requests[-1]
    assert dict(request.sampling.logit_bias) == {15: -2.5, 7: 1.0}
    assert (list(request.sampling.allowed_token_ids), list(request.sampling.bad_words)) == ([7], ["no"])
    assert (request.stop.min_tokens, request.output.logprobs, request.output.prompt_logprobs) == (2, 0, 3)
    assert request.output.HasField("logprobs")
    wrong = run(server, "generate", "a", "--logit-bias", "15")
    assert wrong.exit_code == 2
    assert "must be ID=BIAS" in wrong.stderr


def test_generate_as_json_prints_one_event_a_line(server: FakeServer) -> None:
    events = lines_of(run(server, "generate", "héllo", "--json", "--progress-events"))
    names = [event["event"] for event in events]
    assert names == ["queued", "admitted", "prefill", "preempted", "heartbeat", "delta", "finished", "summary"]
    assert {event["request_id"] for event in events} == {"made-by-server"}
    assert events[5]["text"] == "HÉLLO"
    assert events[6]["finish_reason"] == "stop"
    assert events[7]["usage"]["cached_tokens"] == 32


def test_generate_shows_several_outputs_and_stats(server: FakeServer) -> None:
    result = run(server, "generate", "a b", "-n", "2", "--stats")
    assert "[1] A" in result.stdout
    assert "40 prompt tokens (32 cached), 4 output tokens" in result.stderr
    assert result.stderr.endswith(", request made-by-server\n")  # what `pagewire explain` asks for


def test_generate_reads_stdin(server: FakeServer) -> None:
    assert run(server, "generate", "-", stdin="from stdin").stdout == "FROM STDIN\n"


def test_the_target_can_be_given(server: FakeServer) -> None:
    arguments = ["generate", "x", "--target", server.target]
    assert CliRunner().invoke(app, arguments, env={"PAGEWIRE_TARGET": "127.0.0.1:1"}).exit_code == 0


def test_chat_answers_one_message(server: FakeServer) -> None:
    result = run(server, "chat", "hello there", "--system", "be kind", "--max-tokens", "5")
    assert (result.exit_code, result.stdout) == (0, "HELLO THERE\n")
    assert [message.role for message in server.requests[0].chat.messages] == ["system", "user"]
    assert server.requests[0].stop.max_tokens == 5


def test_chat_reads_a_message_from_a_pipe(server: FakeServer) -> None:
    assert run(server, "chat", stdin="piped\n").stdout == "PIPED\n"
    assert run(server, "chat", stdin="").exit_code == 2


def test_a_conversation_keeps_its_history(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter(["first", "", "second", "third"])

    def ask(prompt: str) -> str:
        text = next(said, None)
        if text is None:
            raise EOFError
        if text == "third":
            server.failures.append(Failure(code=grpc.StatusCode.RESOURCE_EXHAUSTED))
        return text

    monkeypatch.setattr("builtins.input", ask)
    with Client(server.target) as client:
        options: Any = dict.fromkeys(RequestOptions.__annotations__)
        generation._converse(client, [], options)
    contents = [[message.content for message in request.chat.messages] for request in server.requests]
    assert contents[1] == ["first", "FIRST", "second"]
    assert contents[2] == ["first", "FIRST", "second", "SECOND", "third"]


def test_who_calls_may_be_said_behind_the_command(server: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc")
    for words in (
        ("models", "--token-file", str(tmp_path / "token")),
        ("--token-file", str(tmp_path / "token"), "models"),
    ):
        assert "LlamaForCausalLM" in run(server, *words).stdout
    missing = run(server, "models", "--json", "--token-file", str(tmp_path / "none"))
    assert (missing.exit_code, missing.stderr.partition(":")[2]) == (
        2,
        f" --token-file {tmp_path / 'none'}: No such file or directory\n",
    )


def test_models_and_health(server: FakeServer) -> None:
    assert "LlamaForCausalLM" in run(server, "models").stdout
    assert lines_of(run(server, "models", "--json"))[0]["capabilities"] == ["chat", "seed"]
    assert lines_of(run(server, "models", "inspect", "--json")) == lines_of(run(server, "models", "--json"))
    told = run(server, "models", "inspect", "fake").stdout
    for label, value in (("max model len", "2,048"), ("capabilities", "chat, seed"), ("quantization", "none")):
        assert next(line.split(label)[1].strip() for line in told.splitlines() if label in line) == value
    assert run(server, "models", "inspect", "other").exit_code == 1
    assert run(server, "health").stdout == "SERVING\n"
    server.set_serving(False)
    result = run(server, "health", "--json")
    assert lines_of(result)[0]["status"] == "NOT_SERVING"
    assert result.exit_code == 1


def test_health_of_an_unknown_service_says_so(server: FakeServer) -> None:
    result = run(server, "health", "--service", "nope")
    assert result.exit_code == 1
    assert "the server has no service 'nope'" in result.stderr


@pytest.mark.parametrize("role", ["serve", "scheduler"])
def test_help_shows_switches_and_fits_80_columns(role: str) -> None:
    result = CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).invoke(app, [role, "--help"])
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert any(line.startswith("--[no-]enable-prefix-caching ") for line in lines)
    assert "(default 5; with serve 60)" in " ".join(lines)
    assert max(len(line.rstrip()) for line in result.stdout.splitlines()) <= 80


def test_version() -> None:
    result = CliRunner().invoke(app, ["version", "--json"])
    assert json.loads(result.stdout)["grpcio"] == grpc.__version__
    plain = CliRunner().invoke(app, ["version"])
    assert CliRunner().invoke(app, ["--version"]).stdout == plain.stdout != ""


def test_fetch_prints_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.gguf"
    monkeypatch.setattr(model_path, "fetch_embedded", lambda progress: path)
    assert CliRunner().invoke(app, ["fetch"]).stdout == f"{path}\n"
    assert json.loads(CliRunner().invoke(app, ["fetch", "--json"]).stdout) == {"path": str(path)}


def test_a_server_error_is_one_line_and_exit_code_1(server: FakeServer) -> None:
    server.failures.append(Failure(code=grpc.StatusCode.INVALID_ARGUMENT, message="bad"))
    result = run(server, "generate", "x")
    assert (result.exit_code, result.stderr) == (1, "error: INVALID_ARGUMENT: bad\n")


def test_no_server_is_exit_code_1() -> None:
    result = CliRunner().invoke(app, ["health", "--target", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: UNAVAILABLE")
    assert "`pagewire serve` starts one" in result.stderr


@pytest.mark.parametrize(
    "words",
    [["generate"], ["generate", "x", "--top-k", "-1"], ["nothing"], ["serve", "--prot", "1"], ["serve", "none"]],
)
def test_usage_errors_are_exit_code_2(words: list[str]) -> None:
    assert CliRunner().invoke(app, words).exit_code == 2


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="a device of this system")
def test_output_that_cannot_be_written_is_one_line_and_exit_code_1(server: FakeServer) -> None:
    words = [sys.executable, "-m", "pagewire_client.cli", "generate", "Hi", "--target", server.target]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "error: [Errno 28] No space left on device\n"


def test_a_prompt_that_is_no_text_is_one_line(server: FakeServer) -> None:
    result = run(server, "generate", "\udcff")
    assert result.exit_code == 1
    assert "text: 'utf-8' codec can't encode character" in result.stderr


def test_interrupting_is_exit_code_130(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any, **keywords: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(generation, "print_events", interrupted)
    assert run(server, "generate", "x").exit_code == 130


def test_local_starts_a_stack_for_the_call(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Stack:
        def client(self) -> Client:
            return Client(server.target)

    @contextmanager
    def started(stack: Any) -> Iterator[Any]:
        seen.append("started")
        yield stack
        seen.append("stopped")

    monkeypatch.setattr(local, "local_model", lambda name: f"path of {name}")
    monkeypatch.setattr(local, "private_stack", lambda model: seen.append(model) or Stack())
    monkeypatch.setattr(local, "started", started)
    assert run(server, "generate", "x", "--local", "--model", "m.gguf").stdout == "X\n"
    assert seen == ["path of m.gguf", "started", "stopped"]
    assert server.requests[0].model == ""


class StackOfFakes(LocalStack):
    """Takes the launcher's commands, starts nothing, serves the fake."""

    made: list["StackOfFakes"] = []  # noqa: RUF012
    fail: StackError | None = None
    server: FakeServer

    def __init__(self, **parts: Any) -> None:
        self.parts = parts
        StackOfFakes.made.append(self)

    def start(self) -> None:
        if self.fail is not None:
            raise self.fail

    def wait(self, seconds: float | None = None) -> bool:
        raise KeyboardInterrupt

    def stop(self) -> None:
        self.parts["stopped"] = True

    def client(self) -> Client:
        return Client(self.server.target)


@pytest.fixture
def fake_stack(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> type[StackOfFakes]:
    StackOfFakes.made, StackOfFakes.fail, StackOfFakes.server = [], None, server
    monkeypatch.setattr(serving, "LocalStack", StackOfFakes)
    monkeypatch.setattr(serving.signal, "signal", lambda number, handler: None)
    return StackOfFakes


def test_serve_routes_flags_and_prints_one_table(fake_stack: type[StackOfFakes], tmp_path: Path) -> None:
    model = tmp_path / "tiny.gguf"
    model.write_bytes(b"x" * 2**20)
    words = ["serve", str(model), "--port", "50951", "--internal-port", "50952", "--state-dir", str(tmp_path)]
    words += ["--dtype", "float32", "--max-num-seqs", "8", "--num-workers", "2", "--drain-seconds", "3"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    parts = fake_stack.made[0].parts
    scheduler, workers = list(parts["scheduler"].arguments), [list(worker.arguments) for worker in parts["workers"]]
    endpoint = f"ipc://{tmp_path}/worker-50951.sock"
    assert scheduler[1:3] == ["-m", "scheduler_svc"]
    assert scheduler[scheduler.index("--worker-endpoint") + 1] == endpoint
    assert scheduler.count("--port") == 1
    assert "--dtype" not in scheduler
    assert scheduler[scheduler.index("--worker-lost-seconds") + 1] == "60"
    assert len(workers) == 2
    assert workers[0][1:6] == ["-m", "gpu_worker", str(model), "--scheduler", endpoint]
    assert workers[0][6:] == ["--dtype=float32", "--max-num-seqs=8"]
    assert parts["drain_seconds"] == 13.0
    assert parts["stopped"]
    for text in ("fake (LlamaForCausalLM)", "float32", "1 MiB", "100 of 32 tokens", "3,200", "127.0.0.1:50951"):
        assert text in result.stdout


def test_serve_without_an_internal_port_leaves_out_what_only_that_tells(
    fake_stack: type[StackOfFakes], tmp_path: Path
) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"x")
    words = ["serve", str(tmp_path / "tiny.gguf"), "--port", "50955", "--internal-port", "0"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "none" in result.stdout
    assert "pages" not in result.stdout
    assert "unknown" not in result.stdout


def test_serve_refuses_a_port_in_use(fake_stack: type[StackOfFakes], server: FakeServer) -> None:
    result = CliRunner().invoke(app, ["serve", "--port", str(server.port)])
    assert result.exit_code == 2
    assert f"--port {server.port}: cannot listen" in result.stderr
    assert fake_stack.made == []


def test_a_service_that_refuses_its_configuration_is_exit_code_2(
    fake_stack: type[StackOfFakes], tmp_path: Path
) -> None:
    fake_stack.fail = StackError("worker ended (exit code 2)", exit_code=2)
    result = CliRunner().invoke(app, ["serve", str(tmp_path), "--port", "50953", "--internal-port", "50954"])
    assert result.exit_code == 2
    assert fake_stack.made[0].parts["stopped"]


def test_roles_take_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(serving, "_become", became.append)
    assert CliRunner().invoke(app, ["scheduler", "--port", "7", "--log-format=json"]).exit_code == 0
    assert CliRunner().invoke(app, ["worker", str(tmp_path), "--scheduler", "ipc:///x"]).exit_code == 0
    assert became == [
        ["-m", "scheduler_svc", "--port=7", "--log-format=json"],
        ["-m", "gpu_worker", str(tmp_path), "--scheduler=ipc:///x"],
    ]


class DemoStack(StackOfFakes):
    """A private stack for the demo."""

    codes: dict[str, int] = {"scheduler": 0, "worker": 0}  # noqa: RUF012

    def pids(self) -> dict[str, int]:
        return {"scheduler": 1, "worker": 2}

    def exit_codes(self) -> dict[str, int]:
        return self.codes


@pytest.fixture
def demo_stack(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> type[DemoStack]:
    DemoStack.fail, DemoStack.server, DemoStack.codes = None, server, {"scheduler": 0, "worker": 0}
    monkeypatch.setattr(demo, "local_model", lambda name: "model")

    def private_stack(model: str, **options: Any) -> DemoStack:
        stack = DemoStack(**options)
        stack.target = server.target
        return stack

    monkeypatch.setattr(demo, "private_stack", private_stack)
    return DemoStack


def test_the_demo_without_a_terminal(demo_stack: type[DemoStack], server: FakeServer) -> None:
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 0, result.output
    assert len(server.requests) == 9
    assert "tokens/s" in result.stdout
    assert "stopped cleanly" in result.stdout
    assert len(demo.SYSTEM.split()) >= 200


def test_the_demo_fails_when_a_part_does(demo_stack: type[DemoStack], server: FakeServer) -> None:
    demo_stack.codes = {"scheduler": 0, "worker": -9}
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 1
    assert "worker ended with signal SIGKILL" in result.stderr
    server.failures.append(Failure(code=grpc.StatusCode.INTERNAL))
    assert CliRunner().invoke(app, ["demo"]).exit_code == 1


def test_a_model_cannot_steer_a_terminal() -> None:
    assert output.printable("a\x1b[2Jb\r\x07\x9b1m\tc\nd") == "a[2Jb1m\tc\nd"


def test_explain_prints_a_line_a_decision(server: FakeServer) -> None:
    result = run(server, "explain", "known", "--target", server.target)
    assert result.stdout.splitlines() == ["    0.0000 s                waits", "    0.2500 s  step 7        ended"]
    assert lines_of(run(server, "explain", "known", "--json", "--target", server.target))[1]["step_id"] == 7
    unknown = run(server, "explain", "nobody", "--target", server.target)
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert "there is no such request" in unknown.stderr
