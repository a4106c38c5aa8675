"""What docs/clients.md tells to type in a shell works against a live server, by reflection alone."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.scripted_stack import ScriptedStack

RECIPES = (Path(__file__).parents[2] / "docs" / "clients.md").read_text()
COMMANDS = re.findall(r"^(?:grpcurl|buf curl) .*$", RECIPES, re.MULTILINE)


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with ScriptedStack() as stack, stack.worker():
        yield stack.scheduler.target


def objects(text: str) -> list[Any]:
    """The JSON values one after another in a text."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        found.append(value)
        at += len(text[at:]) - len(text[at:].lstrip())
    return found


def run(command: str, target: str) -> str:
    words = shlex.split(command.replace("localhost:50051", target))
    program = shutil.which(words[0], path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip(f"there is no {words[0]}")
    ended = subprocess.run([program, *words[1:]], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, f"{command}\n{ended.stderr}"
    return ended.stdout


def test_the_recipes_are_found() -> None:
    assert len(COMMANDS) == 3


def test_listing(target: str) -> None:
    services = run(COMMANDS[0], target).split()
    assert {"pagewire.v1.GenerationService", "grpc.health.v1.Health"} <= set(services)


def test_streaming(target: str) -> None:
    events = objects(run(COMMANDS[1], target))
    assert "summary" in events[-1]
    assert events[-1]["summary"]["usage"]["output_tokens"] == 8


def test_a_unary_call(target: str) -> None:
    assert objects(run(COMMANDS[2], target))[0]["tokenIds"]
