"""Opens a checkpoint by what the path is: a directory with safetensors, or a GGUF file."""

from pathlib import Path

from gpu_worker.errors import ModelLoadError
from gpu_worker.weights.checkpoint import Checkpoint

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def open_checkpoint(path: Path) -> Checkpoint:
    """Raises ModelLoadError with one line saying what is wrong."""
    if path.is_dir():
        from gpu_worker.weights.safetensors import SafetensorsCheckpoint

        return SafetensorsCheckpoint(path)
    if not path.exists():
        raise ModelLoadError(f"{path}: no such file or directory")
    if path.suffix in _PICKLES:
        raise ModelLoadError(f"{path}: pickled weights can run code when opened; safetensors or GGUF is needed")
    if path.suffix != ".gguf":
        raise ModelLoadError(f"{path}: a directory with safetensors or a .gguf file is needed")
    from gpu_worker.weights.gguf import GgufCheckpoint

    return GgufCheckpoint(path)
