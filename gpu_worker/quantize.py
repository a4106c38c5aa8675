"""``python -m gpu_worker.quantize MODEL --method awq|gptq --calibration FILE --out DIR``, for ``pagewire quantize``.

Checks everything first, quantises, then loads both checkpoints one after the other and reports size, perplexity on text
that took no part in the calibration, and tokens a second. Exit codes as the worker's: 2 for what the caller can mend.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from pagewire_kernels import load_kernels
from tokenizers import Tokenizer

from gpu_worker.config import OneLineParser
from gpu_worker.device import pick_device, pick_dtype, pick_kernels
from gpu_worker.errors import ConfigError, ModelLoadError, WorkerError
from gpu_worker.model_config import ModelConfig
from gpu_worker.model_quality import ModelQuality
from gpu_worker.models.llama import LlamaModel
from gpu_worker.quantize_recipe import METHODS, check_library, quantize
from gpu_worker.weights.load import load_quantized, load_weights
from gpu_worker.weights.open import open_checkpoint

BITS = (2, 3, 4, 8)
GROUP_SIZES = (-1, 32, 64, 128)
WINDOW = 512
"""Tokens of a calibration sample and of a window of the held text."""
HELD_SHARE = 8
"""One in so many windows of the calibration file is held back, unless a held text is given."""
MAX_HELD_WINDOWS = 16
SPEED_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One side of the report."""

    size_bytes: int
    """Of the weight files."""
    memory_bytes: int
    """Of the weights as loaded."""
    perplexity: float
    tokens_per_second: float
    """Greedy, one request."""


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    try:
        options = _parser().parse_args(arguments)
        with redirect_stdout(sys.stderr):  # what the library logs is no part of the report
            before, after = _run(options)
        print(_report(options, before, after), flush=True)
    except (ConfigError, ModelLoadError) as error:
        print(f"pagewire quantize: {error}", file=sys.stderr)
        return 2
    except WorkerError as error:
        print(f"pagewire quantize: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="pagewire quantize",
        description="Write a quantised copy of a model and report what it saves and loses. By either method it is "
        "compressed-tensors: serve it without --quantization, or with compressed-tensors.",
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="Hugging Face directory with plain weights")
    parser.add_argument("--method", choices=METHODS, required=True, help="how the weights are rounded")
    parser.add_argument("--bits", type=int, choices=BITS, default=4, help="bits of a weight (4)")
    parser.add_argument(
        "--group-size", type=int, choices=GROUP_SIZES, help="inputs that share a scale (the largest that fits)"
    )
    parser.add_argument("--calibration", type=Path, required=True, metavar="FILE", help="text as the model will see it")
    parser.add_argument(
        "--held", type=Path, metavar="FILE", help="text for the perplexity (an eighth of the calibration's)"
    )
    parser.add_argument("--samples", type=int, default=128, metavar="N", help=f"most samples of {WINDOW} tokens (128)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to write; must not exist")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser


def _run(options: argparse.Namespace) -> tuple[Figures, Figures]:
    """Figures before and after."""
    config = _check(options)
    options.group_size = _group_size(options.group_size, config)
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    samples, held = _texts(options, tokenizer)
    check_library()
    window = min(WINDOW, config.max_positions)
    print(f"measuring {options.model.name}", file=sys.stderr, flush=True)
    before = _measure(options.model, held, window)
    quantize(
        options.model,
        options.out,
        method=options.method,
        bits=options.bits,
        group_size=options.group_size,
        samples=samples[: options.samples],
    )
    print(f"measuring {options.out.name}", file=sys.stderr, flush=True)
    return before, _measure(options.out, held, window)


def _check(options: argparse.Namespace) -> ModelConfig:
    """What can be known to fail is said before anything is computed."""
    if not options.model.is_dir():
        raise ConfigError(f"{options.model}: a Hugging Face directory with safetensors is needed")
    checkpoint = open_checkpoint(options.model)
    if checkpoint.quantization:
        raise ConfigError(f"{options.model}: is quantised already ({checkpoint.quantization})")
    if options.samples < 1:
        raise ConfigError(f"--samples {options.samples}: not allowed; allowed: 1 and more")
    if options.out.exists():
        raise ConfigError(f"--out {options.out}: exists already")
    return checkpoint.config


def _group_size(asked: int | None, config: ModelConfig) -> int:
    """What is asked for, else the largest that divides the inputs of every projection; at worst -1, all of them.

    Raises: ConfigError.
    """
    widths = {
        "hidden_size": config.hidden_size,
        "num_attention_heads x head_dim": config.num_heads * config.head_dim,
        "intermediate_size": config.intermediate_size,
    }
    fitting = [size for size in GROUP_SIZES if size == -1 or not any(each % size for each in widths.values())]
    if asked is None:
        return fitting[-1]
    if asked not in fitting:
        name = next(name for name, width in widths.items() if width % asked)
        raise ConfigError(
            f"--group-size {asked}: does not divide {name} {widths[name]}; "
            f"allowed for this model: {', '.join(map(str, fitting))}"
        )
    return asked


def _texts(options: argparse.Namespace, tokenizer: Tokenizer) -> tuple[list[list[int]], list[int]]:
    """Calibration samples and the held text's ids. Every eighth window is held back where no held text is given."""
    windows = _windows("--calibration", options.calibration, tokenizer)
    if options.held is not None:
        held = [token for window in _windows("--held", options.held, tokenizer)[:MAX_HELD_WINDOWS] for token in window]
        return windows, held
    if len(windows) < 2:
        raise ConfigError(
            f"--calibration {options.calibration}: too short to hold text back: {2 * WINDOW} tokens are needed, "
            "or --held"
        )
    kept_back = windows[HELD_SHARE - 1 :: HELD_SHARE] or windows[-1:]
    samples = [window for window in windows if window not in kept_back]
    return samples, [token for window in kept_back[:MAX_HELD_WINDOWS] for token in window]


def _windows(flag: str, path: Path, tokenizer: Tokenizer) -> list[list[int]]:
    """Token ids of a text, in windows; a last piece is dropped unless it is all there is."""
    try:
        ids = tokenizer.encode(path.read_text(encoding="utf-8"), add_special_tokens=False).ids
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{flag} {path}: not readable as text ({error})") from None
    if len(ids) < 2:
        raise ConfigError(f"{flag} {path}: holds no text")
    return [ids[start : start + WINDOW] for start in range(0, max(len(ids) - WINDOW, 0) + 1, WINDOW)]


def _measure(path: Path, held: Sequence[int], window: int) -> Figures:
    checkpoint, device = open_checkpoint(path), pick_device("auto")
    dtype, kernels = pick_dtype("auto", checkpoint.config.dtype, device), load_kernels(pick_kernels("auto", device))
    model = LlamaModel(
        checkpoint.config,
        kernels,
        max_model_len=min(2 * WINDOW, checkpoint.config.max_positions),
        dtype=dtype,
        device=device,
        quantized=checkpoint.quantized_modules,
    )
    load_weights(checkpoint, model.weight_slots(), lambda sentence: print(sentence, file=sys.stderr))
    load_quantized(checkpoint, model.quantized_linears, kernels, dtype, device)
    memory_bytes = model.num_weight_bytes
    model.finish(checkpoint.config.vocab_size)
    quality = ModelQuality(model, kernels, window)
    return Figures(
        size_bytes=sum(file.stat().st_size for file in path.glob("*.safetensors")),
        memory_bytes=memory_bytes,
        perplexity=quality.perplexity(held, window),
        tokens_per_second=quality.tokens_per_second(held, min(SPEED_TOKENS, window // 2)),
    )


def _report(options: argparse.Namespace, before: Figures, after: Figures) -> str:
    if options.json:
        made = {"out": str(options.out), "group_size": options.group_size}
        return json.dumps({**made, "before": asdict(before), "after": asdict(after)})
    rows = (
        ("weight files, MB", before.size_bytes / 1e6, after.size_bytes / 1e6),
        ("weights in memory, MB", before.memory_bytes / 1e6, after.memory_bytes / 1e6),
        ("perplexity of the held text", before.perplexity, after.perplexity),
        ("tokens/s, one request", before.tokens_per_second, after.tokens_per_second),
    )
    lines = [f"{'':28}{'before':>12}{'after':>12}{'after / before':>16}"]
    lines += [f"{name:28}{old:>12,.2f}{new:>12,.2f}{new / old:>16.3f}" for name, old, new in rows]
    form = f"compressed-tensors, {options.bits}-bit, group {options.group_size}"
    return "\n".join([f"wrote {options.out} ({form}): pagewire serve {options.out}", *lines])


if __name__ == "__main__":
    torch.manual_seed(0)
    sys.exit(main(sys.argv[1:]))
