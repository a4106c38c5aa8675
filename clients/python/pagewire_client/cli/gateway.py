"""``pagewire gateway``: OpenAI's HTTP API in front of a server."""

from __future__ import annotations

import contextlib
import resource
import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from . import arguments as arg
from .access import ACCESS, TENANT_KEY
from .failures import EXIT_FAILED
from .serving import check_port


def gateway(
    target: arg.Target = arg.TARGET_DEFAULT,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="HTTP port.")] = 8000,
) -> None:
    """Answer OpenAI's HTTP API (/v1/chat/completions, /v1/completions, /v1/models) as a client of a server.

    Callers' bearer tokens go on to the server; the token of --token-file is shown for callers without one.
    """
    try:
        import uvicorn

        from ..gateway.app import make_app
        from ..gateway.upstream import Upstream
    except ImportError as error:
        print(f'error: {error.name} is not installed: pip install ".[gateway]" in a checkout', file=sys.stderr)
        raise typer.Exit(EXIT_FAILED) from None
    check_port(host, port, "port")
    access = ACCESS.get()
    metadata = () if access.tenant is None else ((TENANT_KEY, access.tenant),)
    app = make_app(lambda: Upstream(target, tls=access.tls, token=access.token, metadata=metadata))
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn ends gracefully, then raises the signal once more: that is no death by a signal.
        signal.signal(number, _stopped)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # each caller takes one, and the usual limit is 1,024
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print(f"gateway to {target} on http://{host}:{port}", file=sys.stderr)
    uvicorn.run(app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=30)


def _stopped(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)
