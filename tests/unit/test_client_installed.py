"""A client without the services' packages says so in one line, and replays traces all the same."""

import subprocess
import sys
from importlib.util import find_spec

import pytest
from pagewire_client import StackError, installed
from pagewire_client.cli.failures import exit_code
from pagewire_client.stack import private_stack


@pytest.mark.parametrize(("missing", "service"), [("structlog", "scheduler"), ("torch", "worker")])
def test_what_is_missing_is_named_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, missing: str, service: str
) -> None:
    installed.check_installed("scheduler", "worker")
    monkeypatch.setattr(installed, "find_spec", lambda name: None if name == missing else find_spec(name))
    with pytest.raises(
        StackError, match=rf'^{missing} is not installed: pip install "\.\[all\]" in a checkout$'
    ) as told:
        installed.check_installed(service)
    assert exit_code(told.value) == 2
    with pytest.raises(StackError, match=missing):
        private_stack("model")


def test_a_trace_is_replayed_without_any_package() -> None:
    code = "import sys; sys.modules.update(dict.fromkeys(['structlog', 'pydantic', 'zmq', 'yaml'])); "
    code += "import scheduler_svc.replay"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
