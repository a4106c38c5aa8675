"""The other end of a ChildPool: answers questions under hard limits.

One JSON object a line, both ways: first what the process is to know, then a question at a time. What takes too long,
also one call into C, ends this process alone: by a timer of processor time, which needs no help from Python, and by a
limit of memory. The front starts another. A process ends with its front: at the end of its input.
"""

import json
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

from scheduler_svc.front.parent import die_with_parent

MAX_MEMORY_BYTES = 1 << 30

Answer = Callable[[Any], Any]


def serve(prepare: Callable[[Any], Answer], *, max_seconds: float) -> int:
    """Serves until its input ends; ``prepare`` makes of the first line what answers the others, each within
    ``max_seconds`` of processor time."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer: Answer | None = None
    for line in sys.stdin.buffer:
        if answer is None:
            answer = prepare(json.loads(line))
            continue
        # The signal's default action ends the process, also inside a call into C.
        signal.setitimer(signal.ITIMER_PROF, max_seconds)
        given = answer(json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(json.dumps(given).encode() + b"\n")
        sys.stdout.buffer.flush()
    return 0
