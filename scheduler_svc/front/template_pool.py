"""A model's chat template, rendered in a few processes of its own.

Templates come with a model and their input from anyone: whatever one does, the front's loop and its other requests go
on.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler_svc.front.chat_template import ChatError, ChatTemplate
from scheduler_svc.front.child_pool import ChildLostError, ChildPool

LOST = "the chat template took too much time or memory"


class TemplatePool:
    """Renders as `ChatTemplate` does; blocks its thread meanwhile. Thread-safe."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises: ValueError if the source is no template."""
        ChatTemplate(source, special_tokens)
        first = {"source": source, "special_tokens": dict(special_tokens)}
        self._children = ChildPool("scheduler_svc.front.template_process", first)
        self.close = self._children.close

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
        try:
            answer = self._children.ask(
                {
                    "messages": messages,
                    "add_generation_prompt": add_generation_prompt,
                    "continue_final_message": continue_final_message,
                    "variables": variables,
                }
            )
        except ChildLostError:
            raise ChatError(LOST) from None
        if "text" in answer:
            return str(answer["text"])
        raise ChatError(str(answer["refused"]))
