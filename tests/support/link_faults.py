"""One frame of a link lost, repeated or late; each fault happens once, at the frame of one step."""

from collections.abc import Callable


class LostFrame:
    def __init__(self, step_id: int) -> None:
        self.step_id = step_id
        self.happened = False

    def __call__(self, step_id: int, content: bytes) -> list[bytes]:
        if self.happened or step_id != self.step_id:
            return [content]
        self.happened = True
        return []


class RepeatedFrame(LostFrame):
    def __call__(self, step_id: int, content: bytes) -> list[bytes]:
        if self.happened or step_id != self.step_id:
            return [content]
        self.happened = True
        return [content, content]


class LateFrame(LostFrame):
    """Arrives after the frame that follows it; if none follows, never."""

    def __init__(self, step_id: int) -> None:
        super().__init__(step_id)
        self._held: bytes | None = None

    def __call__(self, step_id: int, content: bytes) -> list[bytes]:
        if self._held is not None:
            held, self._held = self._held, None
            return [content, held]
        if self.happened or step_id != self.step_id:
            return [content]
        self.happened = True
        self._held = content
        return []


class ChangedFrame(LostFrame):
    def __init__(self, step_id: int, change: Callable[[bytes], bytes]) -> None:
        super().__init__(step_id)
        self._change = change

    def __call__(self, step_id: int, content: bytes) -> list[bytes]:
        if self.happened or step_id != self.step_id:
            return [content]
        self.happened = True
        return [self._change(content)]
