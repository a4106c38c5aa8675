"""The gateway on a thread, in front of a server."""

import threading
from types import TracebackType

import uvicorn
from pagewire_client.gateway.app import make_app
from pagewire_client.gateway.upstream import Upstream
from support.conditions import wait_until
from support.scheduler_process import free_ports


class GatewayThread:
    """``with GatewayThread(target) as gateway``: answers at ``url``."""

    def __init__(self, target: str) -> None:
        port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{port}"
        config = uvicorn.Config(
            make_app(lambda: Upstream(target)), host="127.0.0.1", port=port, log_level="error", ws="none"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, name="gateway", daemon=True)

    def __enter__(self) -> "GatewayThread":
        self._thread.start()
        wait_until(lambda: self._server.started, "the gateway listens")
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._server.should_exit = True
        self._thread.join(20)
