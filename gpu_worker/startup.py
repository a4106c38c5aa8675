"""Builds a worker's parts from its configuration, in order: checkpoint, device, model, weights, page pool, warm-up.

Needs neither the link nor the messages nor the library of grammars, so that model and kernels can be tested where those
are not installed.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gpu_worker.device import describe_device, dtype_name
from gpu_worker.errors import ConfigError, ModelLoadError
from gpu_worker.graph_memory import expected_graph_bytes
from gpu_worker.largest_step import run_largest_step
from gpu_worker.memory import cpu_pool_bytes, gpu_pool_bytes
from gpu_worker.model_card import ModelCard, cache_fingerprint, make_model_card
from gpu_worker.model_config import ModelConfig
from gpu_worker.model_runner import ModelRunner
from gpu_worker.models.llama import LlamaModel
from gpu_worker.page_pool import PageShape, allocate_pages, count_pages
from gpu_worker.platform import Platform, pick_platform
from gpu_worker.rank_group import ALONE, RankGroup
from gpu_worker.request_rows import RowLimits
from gpu_worker.shard import check_divides
from gpu_worker.warm_up import warm_up
from gpu_worker.weights.checkpoint import Checkpoint
from gpu_worker.weights.dummy import DummyCheckpoint, fill_with_noise
from gpu_worker.weights.float_copies import keep_float_copies
from gpu_worker.weights.load import load_quantized, load_weights
from gpu_worker.weights.open import open_checkpoint
from gpu_worker.worker_card import WorkerCard

if TYPE_CHECKING:
    from gpu_worker.config import WorkerConfig
    from gpu_worker.grammar_vocabulary import GrammarVocabulary

_DEFAULTS = {"cuda": (256, 8192), "cpu": (64, 512)}
"""max_num_seqs and max_num_batched_tokens."""
MAX_MODEL_LEN = 2**22
"""Longer ones take gigabytes for their angles alone, before it shows that no page pool is large enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A worker that is ready to say hello."""

    runner: ModelRunner
    card: WorkerCard
    summary: str


def build(config: "WorkerConfig", warn: Callable[[str], None], group: RankGroup = ALONE) -> Parts:
    """Every rank of ``group`` calls it with the same configuration.

    Raises ModelLoadError, PagePoolTooSmallError, ConfigError.
    """
    checkpoint = _open(config)
    check_divides(checkpoint.config, group.size)
    max_model_len = _max_model_len(config, checkpoint.config)
    platform = pick_platform(config, checkpoint.config, group, warn)
    model = _load(config, checkpoint, platform, max_model_len, warn)
    card = make_model_card(
        checkpoint,
        name=config.served_model_name or _name(config.model),
        tokenizer=config.tokenizer,
        max_model_len=max_model_len,
        dtype=dtype_name(platform.dtype),
        kv_cache_dtype="fp8" if platform.kv_dtype == torch.float8_e4m3fn else dtype_name(platform.dtype),
    )
    model.finish(card.vocab_size)
    num_copied = _keep_float_copies(config, model, platform)
    page = PageShape.of(model.config, config.page_size, platform.kv_dtype)
    limits = _size_pool(config, model, card, page, platform)
    _say_what_is_used(config.kv_cache_memory_bytes, limits, page, warn)
    kv_pages = allocate_pages(limits.num_pages, page, platform.device)
    runner = ModelRunner(model, platform.kernels, kv_pages, limits, platform.device, _grammar_vocabulary(card, warn))
    warm_up(runner)
    if platform.takes_graphs and not config.enforce_eager:
        runner.capture_graphs(runner.round_shapes().all())
    return Parts(
        runner=runner, card=_worker_card(card, limits, platform), summary=_summary(card, runner, platform, num_copied)
    )


def _open(config: "WorkerConfig") -> Checkpoint:
    is_dummy = config.load_format == "dummy"
    checkpoint: Checkpoint = (
        DummyCheckpoint(config.model, config.quantization) if is_dummy else open_checkpoint(config.model)
    )
    _check_quantization(config.quantization, checkpoint)
    return checkpoint


def _load(
    config: "WorkerConfig", checkpoint: Checkpoint, platform: Platform, max_model_len: int, warn: Callable[[str], None]
) -> LlamaModel:
    kernels, dtype = platform.kernels, platform.dtype
    dequantized = checkpoint.keep_quantized(
        lambda bits, group_size, has_offsets: kernels.takes_quantized(bits, group_size, has_offsets, dtype)
    )
    if dequantized:
        names = ", ".join(dequantized)
        warn(f"weights stored as {names} are dequantised: there are no kernels for them in {dtype_name(dtype)}")
    try:
        model = LlamaModel(
            checkpoint.config,
            kernels,
            max_model_len=max_model_len,
            dtype=dtype,
            device=platform.device,
            quantized=checkpoint.quantized_modules,
            group=platform.group,
        )
    except (RuntimeError, MemoryError) as error:
        raise ModelLoadError(f"the weights cannot be allocated: {str(error).splitlines()[0][:200]}") from None
    if config.load_format == "dummy":
        fill_with_noise(model.weight_slots())
    else:
        load_weights(checkpoint, model.weight_slots(), warn, model.weight_shards())
    load_quantized(checkpoint, model.quantized_linears, kernels, dtype, platform.device)
    return model


def _grammar_vocabulary(card: ModelCard, warn: Callable[[str], None]) -> "GrammarVocabulary | None":
    """None if outputs of the model can have no form: the fronts, which try the same, refuse to ask for one."""
    try:
        from gpu_worker.grammar_vocabulary import GrammarVocabulary

        return GrammarVocabulary(card.tokenizer_json, card.vocab_size, card.eos_token_ids)
    except ImportError:
        warn("llguidance is not installed: there is no structured output")
    except ValueError as error:
        warn(f"there is no structured output with this tokenizer ({error})")
    return None


def _keep_float_copies(config: "WorkerConfig", model: LlamaModel, platform: Platform) -> int:
    """Bytes of the copies that products of many rows use; none where the kernels have no use for them."""
    if platform.device.type != "cuda" or not model.quantized_linears:
        return 0
    torch.cuda.reset_peak_memory_stats(platform.device)  # what loading needed for a while is free again
    spare = platform.group.least(gpu_pool_bytes(platform.device, config.gpu_memory_utilization, platform.free_before))
    try:
        return keep_float_copies(model.quantized_linears, config.quantization_prefill, spare)
    except torch.OutOfMemoryError:
        raise ModelLoadError("--quantization-prefill copy: the copies do not fit the device") from None


def _check_quantization(insisted: str, checkpoint: Checkpoint) -> None:
    if insisted not in ("auto", checkpoint.quantization_method):
        raise ConfigError(
            f"--quantization {insisted}: not allowed: {checkpoint.path} holds {checkpoint.quantization or 'floats'}; "
            f"allowed: auto, {checkpoint.quantization_method}"
        )


def _max_model_len(config: "WorkerConfig", model: ModelConfig) -> int:
    asked = config.max_model_len or model.max_positions
    if asked > model.max_positions:
        raise ConfigError(
            f"--max-model-len {asked}: the model has positions for {model.max_positions}; allowed: 2 to that"
        )
    if asked > MAX_MODEL_LEN:
        raise ConfigError(f"--max-model-len {asked}: not allowed; allowed: 2 to {MAX_MODEL_LEN}")
    return asked


def _name(path: Path) -> str:
    resolved = path.resolve()
    return resolved.stem if resolved.is_file() else resolved.name


def _size_pool(
    config: "WorkerConfig", model: LlamaModel, card: ModelCard, page: PageShape, platform: Platform
) -> RowLimits:
    default_seqs, default_tokens = _DEFAULTS[platform.device.type]
    max_num_seqs = config.max_num_seqs or default_seqs
    max_num_batched_tokens = config.max_num_batched_tokens or default_tokens
    limits = RowLimits(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=card.max_model_len,
        page_size=config.page_size,
        num_pages=1,
        vocab_size=card.vocab_size,
    )
    available = config.kv_cache_memory_bytes
    if available is None and platform.device.type == "cpu":
        available = cpu_pool_bytes() // platform.group.size
    elif available is None:
        run_largest_step(model, platform.kernels, page, max_num_seqs, max_num_batched_tokens, card.max_model_len)
        available = gpu_pool_bytes(platform.device, config.gpu_memory_utilization, platform.free_before)
        if platform.takes_graphs and not config.enforce_eager:
            available -= expected_graph_bytes(model, platform.kernels, page, limits)
    pages = count_pages(available, page, max_model_len=card.max_model_len, max_num_seqs=max_num_seqs)
    return replace(limits, num_pages=platform.group.least(pages))


def _say_what_is_used(asked: int | None, limits: RowLimits, page: PageShape, warn: Callable[[str], None]) -> None:
    """Nobody who asked for a size shall believe to have it."""
    used = limits.num_pages * page.num_bytes
    if asked is not None and used + page.num_bytes <= asked:
        warn(
            f"--kv-cache-memory-bytes {asked}: only {used} are used, {limits.num_pages} pages: no more are needed for "
            f"--max-num-seqs {limits.max_num_seqs} requests of --max-model-len {limits.max_model_len} tokens"
        )


def _worker_card(card: ModelCard, limits: RowLimits, platform: Platform) -> WorkerCard:
    return WorkerCard(
        device=describe_device(platform.device),
        page_size=limits.page_size,
        num_pages=limits.num_pages,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=limits.max_model_len,
        model_card=card,
        cache_fingerprint=cache_fingerprint(card, limits.page_size, platform.kernels.name),
        pid=os.getpid(),
        version=program_version(),
        num_ranks=platform.group.size,
    )


def program_version() -> str:
    """The installed version, or ``0`` when run from a plain checkout."""
    try:
        return version("pagewire")
    except PackageNotFoundError:
        return "0"


def _summary(card: ModelCard, runner: ModelRunner, platform: Platform, num_copied: int) -> str:
    """The table printed at start."""
    limits, graphs, num_ranks, threads = runner.limits, runner.graphs, platform.group.size, platform.num_threads
    tokens = limits.num_pages * limits.page_size
    rows = (
        ("model", f"{card.name} ({card.architecture})"),
        (
            "device",
            f"{describe_device(platform.device)}, {platform.kernels.name} kernels"
            + (f", {threads} thread{'s' * (threads > 1)}" if platform.device.type == "cpu" else ""),
        ),
        (
            "dtype",
            f"{card.dtype}, KV cache {card.kv_cache_dtype}"
            + (f", from {card.quantization}" if card.quantization else ""),
        ),
        *((("ranks", f"{num_ranks}; what follows is of each"),) if num_ranks > 1 else ()),
        ("weights", f"{(runner.model.num_weight_bytes - num_copied) / 2**20:,.1f} MiB"),
        *((("copy for many rows", f"{num_copied / 2**20:,.1f} MiB"),) if num_copied else ()),
        ("pages", f"{limits.num_pages:,} of {limits.page_size} tokens"),
        ("tokens that fit", f"{tokens:,}"),
        ("concurrency", f"{tokens / limits.max_model_len:.1f} requests of max_model_len {limits.max_model_len:,}"),
        *((("CUDA graphs", f"{len(graphs)} of {graphs.num_bytes / 2**20:,.0f} MiB"),) if len(graphs) else ()),
    )
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows)
