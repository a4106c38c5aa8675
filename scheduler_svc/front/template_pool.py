"""A model's chat template, rendered in a few processes of its own.

Templates come with a model and their input from anyone. Whatever one does, it costs a process of this pool at the
worst: the front's loop and its other requests go on. Processes are started when they are needed, and anew after one
was lost. Invariant: a rendering ends within `ANSWER_SECONDS`, with a text or a ChatError.
"""

import contextlib
import json
import queue
import selectors
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from scheduler_svc.front.chat_template import ChatError, ChatTemplate

NUM_PROCESSES = 2
ANSWER_SECONDS = 10.0
"""By the clock; the process has its own limit of processor time, which a busy machine stretches."""
MAX_ANSWER_BYTES = 128 * 1024 * 1024
"""Characters of a text are bounded; in JSON each takes up to 6 bytes."""
LOST = "the chat template took too much time or memory"


class TemplateProcess:
    """One process."""

    def __init__(self, first_line: bytes) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "scheduler_svc.front.template_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._first_line = first_line

    def ask(self, line: bytes) -> Any:
        """The answer to one line.

        Raises: ChatError if the process is lost over it.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise ChatError(LOST)
        try:
            stdin.write(self._first_line + line)
            stdin.flush()
            self._first_line = b""
            return json.loads(_read_line(stdout.fileno(), stdout))
        except (OSError, ValueError):
            raise ChatError(LOST) from None

    def end(self) -> None:
        """Ends the process at once."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class TemplatePool:
    """Renders as `ChatTemplate` does; blocks its thread meanwhile. Thread-safe."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises: ValueError if the source is no template."""
        ChatTemplate(source, special_tokens)
        first = json.dumps({"source": source, "special_tokens": dict(special_tokens)})
        self._first_line = first.encode() + b"\n"
        self._idle: queue.LifoQueue[TemplateProcess | None] = queue.LifoQueue()
        for _ in range(NUM_PROCESSES):
            self._idle.put(None)
        weakref.finalize(self, _end_idle, self._idle)

    def close(self) -> None:
        """Ends the processes that are idle; a later rendering starts another."""
        _end_idle(self._idle)

    def render(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as text.

        Raises: ChatError if the template refuses it, fails on it, or exceeds its limits.
        """
        asked = {
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "variables": variables,
        }
        line = json.dumps(asked).encode() + b"\n"
        process = self._idle.get()
        try:
            if process is None:
                process = TemplateProcess(self._first_line)
            answer = process.ask(line)
        except BaseException:
            if process is not None:
                process.end()
            process = None
            raise
        finally:
            self._idle.put(process)
        if "text" in answer:
            return str(answer["text"])
        raise ChatError(str(answer["refused"]))


def _end_idle(idle: "queue.LifoQueue[TemplateProcess | None]") -> None:
    """Ends the processes that render nothing now; their places stay."""
    places: list[None] = []
    with contextlib.suppress(queue.Empty):
        while True:
            process = idle.get_nowait()
            places.append(None)
            if process is not None:
                process.end()
    for place in places:
        idle.put(place)


def _read_line(descriptor: int, stream: Any) -> bytes:
    """One line of a pipe.

    Raises: OSError if it ends, takes too long or is too long.
    """
    deadline = time.monotonic() + ANSWER_SECONDS
    pieces: list[bytes] = []
    size = 0
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while not pieces or not pieces[-1].endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            piece = stream.read1(1 << 20)
            size += len(piece)
            if not piece or size > MAX_ANSWER_BYTES:
                raise OSError
            pieces.append(piece)
    return b"".join(pieces)
