"""`python -m scheduler_svc.front.template_process`: renders conversations for a front, with hard limits.

One JSON object a line, both ways: first the template, then a conversation at a time, each answered by its text or by
why there is none. The template's own checks stop nearly all that goes wrong; what gets past them (one call into C that
takes minutes or gigabytes) ends this process alone: by a timer of processor time, which needs no help from Python, and
by a limit of memory. The front starts another. It ends with its front: at the end of its input.
"""

import json
import resource
import signal
import sys
from typing import Any

from scheduler_svc.front.chat_template import MAX_SECONDS, ChatError, ChatTemplate
from scheduler_svc.front.parent import die_with_parent

MAX_MEMORY_BYTES = 1 << 30


def main() -> int:
    """Serves until its input ends."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    template: ChatTemplate | None = None
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        if template is None:
            template = ChatTemplate(asked["source"], asked["special_tokens"])
            continue
        # The signal's default action ends the process, also inside a call into C.
        signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS * 1.25)
        answer = _answer(template, asked)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()
    return 0


def _answer(template: ChatTemplate, asked: dict[str, Any]) -> dict[str, str]:
    messages = asked.pop("messages")
    try:
        return {"text": template.render(messages, **asked)}
    except ChatError as error:
        return {"refused": str(error)}


if __name__ == "__main__":
    sys.exit(main())
