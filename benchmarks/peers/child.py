"""How a child process answers the one that started it: one JSON object a line, stdlib only.

The child writes its answers to a descriptor of its own, since engines print to stdout as they like. An engine first
says {"version", "settings"}, then answers every {"requests", "temperature"} with {"wall_s", "outputs",
"cached_tokens"}. A child that cannot answer says {"error"}. It ends when its stdin closes.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Requests = Sequence[tuple[Sequence[int], int]]
"""Prompts, and how many tokens each is continued by."""
Generate = Callable[[Requests, float], dict[str, Any]]
"""Requests and a temperature."""


def serve(start: Callable[[], tuple[Generate, str, str]]) -> None:
    """Runs an engine's side: ``start`` loads it and gives (generate, version, settings)."""

    def loaded() -> tuple[Callable[[Mapping[str, Any]], dict[str, Any]], dict[str, Any]]:
        generate, version, settings = start()
        hello = {"version": version, "settings": settings}
        return lambda asked: generate(asked["requests"], asked["temperature"]), hello

    answer_lines(loaded)


def answer_lines(
    start: Callable[[], tuple[Callable[[Mapping[str, Any]], dict[str, Any]], dict[str, Any]]],
) -> None:
    """Answers every line by what ``start`` gives, after its greeting."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    answer, greeting = start()
    _say(answers, greeting)
    for line in sys.stdin:
        _say(answers, answer(json.loads(line)))


def _say(answers: Any, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()
