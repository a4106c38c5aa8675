"""The server a command talks to: a running one, or a stack started for the call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..client import Client
from ..stack import LocalStack, private_stack
from .access import open_client
from .models import local_model
from .output import stderr_console


@contextmanager
def connection(target: str, *, local: bool, model: str | None) -> Iterator[Client]:
    """A client of ``target``, or with ``local`` of a private stack of ``model`` that ends with the block."""
    if not local:
        with open_client(target) as client:
            yield client
        return
    stack = private_stack(local_model(model))
    with started(stack), stack.client() as client:
        yield client


@contextmanager
def started(stack: LocalStack) -> Iterator[LocalStack]:
    """Starts a stack with a spinner, stops it at the end of the block."""
    console = stderr_console()
    with console.status("starting scheduler and worker"):
        stack.start()
    try:
        yield stack
    finally:
        stack.stop()
