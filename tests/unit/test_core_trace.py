"""Traces of a core: what a file holds, what is refused, what a replay and a simulation of it tell."""

import json
import os
import stat
from array import array
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from support.core_bench import CoreBench, card, config

from scheduler_svc import replay, trace_format, traced_core
from scheduler_svc.core.errors import RequestRejected
from scheduler_svc.core.types import NewRequest, RequestKey, StepResult, WorkerId
from scheduler_svc.traced_core import TracedCore, TraceFile


def traced(path: Path, *, arrivals: int = 6, seconds: float = 0.5, **limits: int) -> CoreBench:
    """Requests of 8 tokens and 4 outputs at once, on steps of equal time."""
    file = TraceFile(path)
    bench = CoreBench(config(**limits), card(pages=200), make=partial(TracedCore, write=file.write))
    for key in range(arrivals):
        bench.submit(key, [key, *range(50, 57)], 4, stops=())
    while bench.plan() is not None:
        bench.now += seconds
        bench.result()
    file.close()
    return bench


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_a_trace_holds_no_token(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "trace")
    bench = CoreBench(config(), card(), make=partial(TracedCore, write=file.write), function=lambda *_: 7654321)
    bench.submit(0, [1234567] * 9, 9, stops=(7777777,))
    bench.run()
    file.close()
    columns = [trace_format.pack([token_id]).rstrip("=")[:4] for token_id in (1234567, 7654321, 7777777)]
    text = (tmp_path / "trace").read_text()
    assert not [token_id for token_id in ("1234567", "7654321", "7777777", *columns) if token_id in text]
    assert not any(name.hex() in text for name in bench.requests[0].page_hashes)


def test_only_the_owner_may_read_it_and_an_older_one_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("older")
    TraceFile(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (tmp_path / "trace.1").read_text() == "older"
    with pytest.raises(OSError, match=r"--trace-file .*nowhere/trace: No such file"):
        TraceFile(tmp_path / "nowhere" / "trace")


def test_what_is_no_file_stays_where_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"--trace-file .*pipe: Not a regular file"):
        TraceFile(tmp_path / "pipe")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_trace_that_grows_too_large_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced_core, "MOST_BYTES", 1500)
    with capture_logs() as logs:
        traced(tmp_path / "trace")
    assert [entry["event"] for entry in logs] == ["trace_ended"]
    assert replay.main([str(tmp_path / "trace")]) == 0


def test_a_difference_is_found_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace"
    traced(path)
    lines = lines_of(path)
    number = next(number for number, line in enumerate(lines, 1) if line.startswith('["commit"'))
    changed = json.loads(lines[number - 1])
    changed[2]["failed"] = True
    lines[number - 1] = json.dumps(changed)
    path.write_text("\n".join(lines) + "\n")
    assert replay.main([str(path)]) == 1
    assert f"first difference in line {number}" in capsys.readouterr().out


def test_a_line_cut_off_at_the_end_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    traced(path)
    path.write_text(path.read_text()[:-5])
    assert replay.main([str(path)]) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a running server writes in pieces"),
        ('{"pagewire_trace": 2}\n', "no trace of version 1"),
        ("not JSON\n", "not JSON"),
        ('{"pagewire_trace": 1, "config": {"max_num_seqs": 1}}\n', "config"),
        ('HEADER["dance", 0.0, [], ""]\n', "line 2 is not a call: there is no 'dance'"),
        ('HEADER["submit", 0.0, {}, ""]\n', "line 2 is not a call"),
        ('HEADER["plan"]\n', "line 2 is not a call"),
        ('HEADER["cancel", 0.0, [1, "boredom"], ""]\n', "line 2 is not a call"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    path = tmp_path / "trace"
    path.write_text(text.replace("HEADER", json.dumps(trace_format.header(config())) + "\n"))
    assert replay.main([str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {path}: ")
    assert message in line


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay.main([str(tmp_path / "trace")]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path}/trace: No such file or directory\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-num-seqs", "x"], "--max-num-seqs x: must be an integer from 1 to 2147483647"),
        (["--max-steps-in-flight", "0"], "--max-steps-in-flight 0: must be an integer from 1 to 2147483647"),
        (["--long-prefill-token-threshold=-1"], "--long-prefill-token-threshold -1: must be an integer from 0 to "),
        (["--max-num-seq", "1"], "unrecognized arguments: --max-num-seq"),
    ],
)
def test_a_wrong_limit_is_one_line_that_names_the_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    traced(tmp_path / "trace")
    assert replay.main([str(tmp_path / "trace"), *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {said}")


def test_refusals_and_results_of_nobody_are_replayed(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "trace")
    bench = CoreBench(config(max_queued_requests=1), make=partial(TracedCore, write=file.write))
    with pytest.raises(RequestRejected):
        bench.submit(0, [1] * 9, 1)
    bench.join(card())
    bench.submit(0, [1] * 9, 1)
    with pytest.raises(RequestRejected):
        bench.submit(1, [1], 1)
    bench.core.commit(StepResult(worker_id=WorkerId("z"), step_id=1, rows=array("i"), token_ids=array("i")), 1.0)  # type: ignore[arg-type]
    bench.core.stop(RequestKey(9), 1, 1.0)
    bench.run()
    file.close()
    answers = list(replay.Replay(tmp_path / "trace"))
    assert [call.name for call in answers if call.answer is None] == ["submit", "submit"]
    assert all(call.is_equal for call in answers)


def test_answers_without_events_are_replayed(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "trace")
    bench = CoreBench(config(), make=partial(TracedCore, write=file.write))
    bench.join(card())
    bench.submit(0, [1] * 9, 1)
    bench.run()
    assert bench.core.take_names(card().worker_id, 9.0) is not None
    assert bench.core.reset_prefix_cache(9.0) > 0
    file.close()
    assert [call.name for call in replay.Replay(tmp_path / "trace")][-2:] == ["take_names", "reset_prefix_cache"]
    assert replay.main([str(tmp_path / "trace")]) == 0


def test_log_probabilities_are_no_difference(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "trace")
    core = TracedCore(config(), file.write)
    core.add_worker(card(), 0.0)
    core.submit(NewRequest(key=RequestKey(1), prompt=array("i", [1] * 9), max_tokens=1), 0.0)
    plan, _ = core.plan(card().worker_id, 0.0)
    assert plan is not None
    told = StepResult(
        worker_id=card().worker_id,
        step_id=plan.step_id,
        rows=array("i", [0]),
        token_ids=array("i", [7]),
        attachments=[(0, b"columns")],
    )
    assert core.commit(told, 1.0).attachments == [(1, b"columns")]
    file.close()
    assert replay.main([str(tmp_path / "trace")]) == 0


def test_what_if_compares_two_simulations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace"
    traced(path, rows=2)
    assert replay.main([str(path), "--json", "--max-num-seqs", "6"]) == 0
    table = json.loads(capsys.readouterr().out)["what_if"]
    assert list(table) == ["recorded", "simulated", "with changes"]
    recorded, simulated, changed = table.values()
    assert recorded["output_tokens"] == simulated["output_tokens"] == changed["output_tokens"] == 24
    assert simulated["seconds"] == pytest.approx(recorded["seconds"], rel=0.2)
    assert changed["seconds"] < 0.5 * simulated["seconds"]
    assert changed["ttft_p99_ms"] < 0.5 * recorded["ttft_p99_ms"]


def test_what_if_is_shown_as_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traced(tmp_path / "trace", arrivals=1)
    assert replay.main([str(tmp_path / "trace"), "--max-num-batched-tokens", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "calls 10, steps 4, equal True"
    assert lines[1].split() == ["recorded", "simulated", "with", "changes"]
    assert lines[-1].split() == ["preemptions", "0", "0", "0"]
