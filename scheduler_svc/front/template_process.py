"""`python -m scheduler_svc.front.template_process`: renders conversations for a front.

First comes the template, then a conversation at a time, each answered by its text or by why there is none. The
template's own checks stop nearly all that goes wrong; the process's limits stop what gets past them.
"""

import sys
from typing import Any

from scheduler_svc.front.chat_template import MAX_SECONDS, ChatError, ChatTemplate
from scheduler_svc.front.child_limits import Answer, serve


def _prepare(first: dict[str, Any]) -> Answer:
    template = ChatTemplate(first["source"], first["special_tokens"])

    def answer(asked: dict[str, Any]) -> dict[str, str]:
        messages = asked.pop("messages")
        try:
            return {"text": template.render(messages, **asked)}
        except ChatError as error:
            return {"refused": str(error)}

    return answer


if __name__ == "__main__":
    sys.exit(serve(_prepare, max_seconds=MAX_SECONDS * 1.25))
