"""Lines that a front writes to stderr, in a log of which every line is JSON."""

import os

import pytest
from structlog.testing import capture_logs

from scheduler_svc.child_lines import ChildLines


def test_events_pass_and_other_lines_become_events(capsys: pytest.CaptureFixture[str]) -> None:
    read_end, write_end = os.pipe()
    with capture_logs() as logs:
        lines = ChildLines(read_end, 3)
        assert lines.read()
        os.write(write_end, b'{"event": "whole"}\nI1130 handshake failed: \xff\n\n{"event": ')
        assert lines.read()
        os.write(write_end, b'"in parts"}\nlast words')
        os.close(write_end)
        assert lines.read()
        assert not lines.read()
    os.close(read_end)
    assert capsys.readouterr().err == '{"event": "whole"}\n{"event": "in parts"}\n'
    assert [(entry["event"], entry["front"], entry["text"]) for entry in logs] == [
        ("library_said", 3, "I1130 handshake failed: \ufffd"),
        ("library_said", 3, "last words"),
    ]


def test_a_flood_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    read_end, write_end = os.pipe()
    with capture_logs() as logs:
        lines = ChildLines(read_end, 0)
        os.write(write_end, b"again\n" * 1000)
        assert lines.read()
    os.close(read_end)
    os.close(write_end)
    assert len(logs) == 20
