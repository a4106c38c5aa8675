"""The table of cosines and sines for rotary position embeddings (arXiv 2104.09864), made once at load.

Frequencies and angles are computed in float32 in the order transformers uses, so that float32 runs agree with it.
"""

import math

import torch

from gpu_worker.model_config import RopeConfig


def make_cos_sin(rope: RopeConfig, head_dim: int, num_positions: int, device: torch.device) -> torch.Tensor:
    """float32 [num_positions, head_dim]: cosines in the first half of the last axis, sines in the second."""
    frequencies = _frequencies(rope, head_dim)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=1).to(device)


def _frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """float32 [head_dim / 2]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.freq_divisors:
        frequencies = frequencies / torch.tensor(rope.freq_divisors, dtype=torch.float32)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _llama3(frequencies, rope)
    return frequencies


def _llama3(frequencies: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Keep high frequencies, divide low ones by the factor, blend in between."""
    low_wavelength = rope.original_max_positions / rope.low_freq_factor
    high_wavelength = rope.original_max_positions / rope.high_freq_factor
    wavelengths = 2 * math.pi / frequencies
    scaled = torch.where(wavelengths > low_wavelength, frequencies / rope.factor, frequencies)
    blend = (rope.original_max_positions / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - blend) * scaled / rope.factor + blend * scaled
    between = (wavelengths >= high_wavelength) & (wavelengths <= low_wavelength)
    return torch.where(between, blended, scaled)
