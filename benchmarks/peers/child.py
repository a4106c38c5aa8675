"""How an adapter talks to an engine that runs under a Python of its own: one JSON object a line, stdlib only.

The child writes its answers to a descriptor of its own, since engines print to stdout as they like. It first says
{"version", "settings"}, then answers every {"prompts", "max_tokens"} with {"wall_s", "outputs", "cached_tokens"}; it
ends when its stdin closes.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

Generate = Callable[[Sequence[Sequence[int]], int], dict[str, Any]]


def serve(start: Callable[[], tuple[Generate, str, str]]) -> None:
    """Runs the child's side: ``start`` loads the engine and gives (generate, version, settings)."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    generate, version, settings = start()
    _say(answers, {"version": version, "settings": settings})
    for line in sys.stdin:
        request = json.loads(line)
        _say(answers, generate(request["prompts"], request["max_tokens"]))


def _say(answers: Any, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()
