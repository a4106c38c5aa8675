"""vLLM: `LLM.generate` for offline workloads, its OpenAI server for streams; both in vLLM's own Python.

On a CPU the environment is what vLLM's documentation asks for: all cores bound, tcmalloc and Intel's OpenMP preloaded;
a process that is not running a workload is stopped by SIGSTOP, since its threads may spin. Nothing is fetched.
"""

import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.clients import Clients
from benchmarks.engine import ROOT, EngineError, end, last_lines, say, signal_tree
from benchmarks.measure import Outcome
from benchmarks.peers.process import ChildEngine
from benchmarks.ports import free_port
from benchmarks.workloads import Workload

_TCMALLOC = Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4")
_MODEL = "m"
_OFFLINE = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


class Vllm:
    """vLLM's two ways in; each starts when a workload first needs it. ``settings`` are engine arguments of both."""

    name = "vllm"

    def __init__(
        self, python: Path, model: str, dtype: str, settings: Mapping[str, Any], *, sites: str = "", on_cpu: bool = True
    ) -> None:
        self.model, self.dtype = model, dtype
        self._python, self._sites, self._on_cpu = python, sites, on_cpu
        self._settings = {"dtype": dtype, "enable_prefix_caching": True, **settings}
        self._offline: ChildEngine | None = None
        self._server: subprocess.Popen[str] | None = None
        self._port = 0
        self._clients = Clients("http", lambda: f"127.0.0.1:{self._port}", _MODEL)
        self._sockets = tempfile.TemporaryDirectory(prefix="vllm-")  # it leaves those of killed processes behind
        self.log = Path(tempfile.gettempdir()) / f"pagewire-bench-vllm-{os.getpid()}.log"
        self.version = self._ask_version()
        self.settings = " ".join(f"{key}={value}" for key, value in self._settings.items())

    def roots(self) -> list[int]:
        offline = [self._offline.process.pid] if self._offline else []
        return offline + ([self._server.pid] if self._server else [])

    def run(self, workload: Workload) -> Outcome:
        self._start(is_served=workload.is_served)
        if workload.is_served:
            self._await_server(time.monotonic() + 900)
            return self._clients.run(workload)
        if self._offline is None:
            raise EngineError("vllm has no offline engine")
        return self._offline.run(workload)

    def pause(self) -> None:
        if self._on_cpu:
            signal_tree(self.roots(), signal.SIGSTOP)

    def resume(self) -> None:
        if self._on_cpu:
            signal_tree(self.roots(), signal.SIGCONT)

    def stop(self) -> None:
        self.resume()
        self._clients.stop()
        if self._offline is not None:
            self._offline.stop()
        if self._server is not None:
            end(self._server)
        self._sockets.cleanup()

    def _start(self, *, is_served: bool) -> None:
        """Begins to start what such workloads need."""
        if is_served and self._server is None:
            self._start_server()
        elif not is_served and self._offline is None:
            say(f"starting vllm (log: {self.log})")
            command = [str(self._python), "-m", "benchmarks.peers.vllm_child", json.dumps([self.model, self._settings])]
            self._offline = ChildEngine(command, environment=self._environment(), log=self.log)

    def _environment(self) -> dict[str, str]:
        paths = [path for path in (str(ROOT), self._sites, os.environ.get("PYTHONPATH")) if path]
        made = {**os.environ, **_OFFLINE, "VLLM_RPC_BASE_PATH": self._sockets.name, "PYTHONPATH": ":".join(paths)}
        if not self._on_cpu:
            return {**made, "VLLM_USE_FLASHINFER_SAMPLER": "0"}
        cores = os.sched_getaffinity(0)
        libraries = [_TCMALLOC, self._python.parent.parent / "lib" / "libiomp5.so"]
        return {
            **made,
            "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "2"),
            "VLLM_CPU_OMP_THREADS_BIND": f"{min(cores)}-{max(cores)}",
            "LD_PRELOAD": ":".join(str(library) for library in libraries if library.exists()),
        }

    def _start_server(self) -> None:
        self._port = free_port()
        say(f"starting vllm's server (log: {self.log})")
        command = [str(self._python), "-m", "vllm.entrypoints.openai.api_server", "--model", self.model]
        command += ["--served-model-name", _MODEL, "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--no-enable-log-requests", *_flags(self._settings)]
        with self.log.open("ab") as log:
            self._server = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True, cwd=ROOT, env=self._environment()
            )

    def _await_server(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            if self._server is None or self._server.poll() is not None:
                raise EngineError(f"vllm's server ended; the end of {self.log}:\n{last_lines(self.log)}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/health", timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        raise EngineError(f"vllm's server is not ready after 900 s; its log is {self.log}")

    def _ask_version(self) -> str:
        distribution = "vllm-cpu" if self._on_cpu else "vllm"
        command = [str(self._python), "-c", f"import importlib.metadata as m; print(m.version('{distribution}'))"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, check=True, env=self._environment())
        except (OSError, subprocess.CalledProcessError) as error:
            raise EngineError(f"{self._python} cannot import {distribution}: see benchmarks/README.md") from error
        return answer.stdout.strip()


def _flags(settings: Mapping[str, Any]) -> list[str]:
    """Engine arguments as the server's flags."""
    words: list[str] = []
    for key, value in settings.items():
        words += [f"--{key.replace('_', '-')}", *([] if value is True else [str(value)])]
    return words
