"""What a front tells a caller of itself."""

from typing import Any

import pytest

from scheduler_svc.front.caller import echo


class Call:
    """A call with this metadata."""

    def __init__(self, *metadata: tuple[str, Any]) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> tuple[tuple[str, Any], ...]:
        return self._metadata


@pytest.mark.parametrize("name", ["", "mine", " ~", "x" * 256])
def test_a_callers_name_of_a_call_is_told(name: str) -> None:
    assert echo(Call(("other", "x"), ("x-request-id", name), ("x-request-id", "again"))) == (("x-request-id", name),)


@pytest.mark.parametrize("name", ["é", "a\x01b", "\x7f", b"\xff\xfe", "x" * 257])
def test_grp_04_a_name_that_metadata_cannot_carry_is_not(name: str | bytes) -> None:
    assert echo(Call(("x-request-id", name))) == ()
