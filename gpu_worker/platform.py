"""What a rank computes with: device, types, kernels, threads, as the configuration, the model and the machine say."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from pagewire_kernels import KernelSet

from gpu_worker.cpu_threads import set_cpu_threads, threads_of_rank
from gpu_worker.device import load_kernel_set, pick_device, pick_dtype, pick_kernels, pick_kv_dtype
from gpu_worker.errors import ModelLoadError
from gpu_worker.model_config import ModelConfig
from gpu_worker.rank_group import RankGroup

if TYPE_CHECKING:
    from gpu_worker.config import WorkerConfig

MIN_TRITON_HEAD_DIM = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Of one rank."""

    group: RankGroup
    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype
    kernels: KernelSet
    num_threads: int
    free_before: int
    """Bytes of the device's memory that were free before anything was loaded; 0 on a CPU."""

    @property
    def takes_graphs(self) -> bool:
        """Whether steps can be CUDA graphs: only the Triton kernels read nothing back on the host."""
        return self.device.type == "cuda" and self.kernels.name == "triton"


def pick_platform(
    config: "WorkerConfig", model: ModelConfig, group: RankGroup, warn: Callable[[str], None]
) -> Platform:
    """Loads the kernels. Raises ConfigError, ModelLoadError."""
    device = pick_device(config.device, group.rank, group.size)
    free_before = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
    dtype = pick_dtype(config.dtype, model.dtype, device)
    kv_dtype = pick_kv_dtype(config.kv_cache_dtype, dtype, device)
    num_threads = 1
    if device.type == "cpu":
        asked = config.cpu_threads or (0 if group.size == 1 else threads_of_rank(group.size))
        num_threads = set_cpu_threads(asked, model.hidden_size, model.intermediate_size, dtype)
    kernels_name = pick_kernels(config.kernels, device)
    _check_head_dim(kernels_name, model.head_dim)
    kernels = load_kernel_set(kernels_name)
    if kernels.name == "cpu":
        warn("there is no C compiler (cc): the CPU kernels are slower than they could be")
    return Platform(
        group=group,
        device=device,
        dtype=dtype,
        kv_dtype=kv_dtype,
        kernels=kernels,
        num_threads=num_threads,
        free_before=free_before,
    )


def _check_head_dim(kernels_name: str, head_dim: int) -> None:
    """The Triton kernels' tiles are powers of two."""
    if kernels_name == "triton" and (head_dim < MIN_TRITON_HEAD_DIM or head_dim & (head_dim - 1)):
        raise ModelLoadError(
            f"config: head_dim {head_dim} is not supported on a GPU; powers of two from {MIN_TRITON_HEAD_DIM} are"
        )
