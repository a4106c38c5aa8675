"""`pagewire gateway` in front of a server."""

import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from types import TracebackType

from pagewire_client.stack import free_ports
from support.conditions import wait_until


class GatewayProcess:
    """``with GatewayProcess(target) as gateway``: answers at ``url``."""

    def __init__(self, target: str, begin: Callable[[], object] = lambda: None) -> None:
        """``begin`` has the server begin to serve, if it does not yet."""
        self._begin = begin
        self._port = free_ports(1)[0]
        self._target = target
        self.url = f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> "GatewayProcess":
        words = ["gateway", "--target", self._target, "--port", str(self._port)]
        self.process = subprocess.Popen([sys.executable, "-m", "pagewire_client.cli", *words])
        self._begin()
        wait_until(self.is_serving, "the gateway serves", 20)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait(10)

    def is_serving(self) -> bool:
        """Whether it says so; fails at once if it has ended."""
        assert self.process.poll() is None
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=10) as answer:
                return bool(answer.status == 200)
        except urllib.error.URLError:
            return False

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)
