"""`pagewire bench`: what it reports of a server, and of times that are known."""

import json

import grpc
import pytest
from pagewire_client.cli.app import app
from pagewire_client.cli.bench import Measured, report_of
from pagewire_client.errors import server_error
from support.scripted_rows import Limits
from support.scripted_stack import ScriptedStack
from typer.testing import CliRunner

SIZES = ("--num-prompts", "5", "--input-len", "6", "--output-len", "4", "--max-concurrency", "2")


def test_a_server_is_measured() -> None:
    with ScriptedStack() as stack, stack.worker(Limits(), step_seconds=0.002):
        words = ["bench", *SIZES, "--target", stack.scheduler.target]
        plain = CliRunner().invoke(app, words)
        paced = CliRunner().invoke(app, [*words, "--json", "--request-rate", "200"])
        running = stack.client.load()
    assert plain.exit_code == paced.exit_code == 0, plain.output + paced.output
    assert plain.stdout.startswith("5 requests in ")
    assert "first token" in plain.stdout
    report = json.loads(paced.stdout)
    assert (report["completed"], report["failed"]) == (5, 0)
    assert report["output_throughput"] * report["duration_seconds"] == pytest.approx(20)
    assert 0 < report["ttft_ms"]["p50"] <= report["ttft_ms"]["p99"] <= report["e2el_ms"]["p99"]
    assert running.num_output_tokens == 2 * 6 * 4  # one more a run, which is not counted
    assert running.num_requests_running == 0


def test_a_server_that_refuses_or_is_not_there_ends_it_with_one_line() -> None:
    with ScriptedStack() as stack, stack.worker(Limits()):
        words = ["bench", "--input-len", "999999", "--target", stack.scheduler.target]
        refused = CliRunner().invoke(app, words)
    gone = CliRunner().invoke(app, ["bench", "--target", stack.scheduler.target])
    for result, said in ((refused, "error: INVALID_ARGUMENT: token_ids: a prompt of "), (gone, "error: UNAVAILABLE: ")):
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith(said)


def test_times_are_those_of_requests_that_succeeded() -> None:
    lost = Measured(sent_at=0.0, error=server_error(grpc.StatusCode.UNAVAILABLE, "gone"))
    quick = Measured(sent_at=1.0, came_at=[1.1, 1.2, 1.5], output_tokens=5)
    short = Measured(sent_at=2.0, came_at=[2.3], output_tokens=1)
    report = report_of([lost, quick, short], 2.0, input_len=7)
    assert (report["completed"], report["failed"], report["request_throughput"]) == (2, 1, 1.0)
    assert (report["output_throughput"], report["total_token_throughput"]) == (3.0, 10.0)
    assert report["ttft_ms"] == pytest.approx({"mean": 200, "p50": 100, "p90": 300, "p99": 300})
    assert report["tpot_ms"] == pytest.approx({"mean": 100, "p50": 100, "p90": 100, "p99": 100})
    assert report["itl_ms"] == pytest.approx({"mean": 200, "p50": 100, "p90": 300, "p99": 300})
    assert report_of([lost], 2.0, input_len=7)["e2el_ms"] is None
