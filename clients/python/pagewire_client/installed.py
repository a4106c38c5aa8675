"""Whether what a service needs is installed. Asked before one is started, which else ends with a traceback."""

from __future__ import annotations

from importlib.util import find_spec

from .errors import StackError

_NEEDED = {
    "scheduler": ("structlog", "pydantic_settings", "zmq", "uvloop"),
    "worker": ("torch", "transformers", "structlog", "pydantic_settings", "zmq"),
}
"""By the extras' names: packages by which it shows, as the client needs none of them."""
_MISSING_EXIT_CODE = 2


def check_installed(*services: str) -> None:
    """Raises: StackError, naming what is missing and how to get it."""
    for service in services:
        missing = next((name for name in _NEEDED[service] if find_spec(name) is None), None)
        if missing is not None:
            raise StackError(
                f'{missing} is not installed: pip install ".[all]" in a checkout', exit_code=_MISSING_EXIT_CODE
            )
