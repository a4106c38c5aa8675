"""What min_p, top_k and top_p keep, written so that every kernel set can compute it exactly and without a sort.

Each step keeps the tokens at or above some logit, so a row's kept set is ``logit >= threshold``. With ``peak`` the
row's largest logit:

* min_p keeps ``logit >= peak + temperature * log(min_p)``;
* top_k keeps a token if fewer than ``top_k`` tokens lie strictly above it (ties at the border all stay);
* top_p keeps a token if the mass strictly above it is below ``top_p`` of the mass that the steps before kept.

A token's mass is ``exp((logit - peak) / temperature)``, counted in whole units of 2**-40: integer sums do not depend on
the order of summation, so a CPU's sort, a GPU's bisection and any split of a row agree.
"""

import torch

MASS_ONE = float(2**40)
"""Units of mass of the likeliest token; 2**23 such tokens still fit an int64."""
MIN_TEMPERATURE = 1e-20
"""Smaller positive temperatures count as this one, so that finite logits stay finite."""


def scale_logits(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """``logits / temperature`` in float32, for temperature > 0."""
    # Divided as tensors: torch turns a division by a Python float into a multiplication by its rounded inverse.
    return logits.float() / torch.tensor(max(temperature, MIN_TEMPERATURE), dtype=torch.float32, device=logits.device)


def min_p_threshold(peak: torch.Tensor, temperature: float, min_p: float) -> torch.Tensor:
    """Smallest logit that min_p > 0 keeps; float32."""
    return peak + max(temperature, MIN_TEMPERATURE) * torch.log(peak.new_tensor(min_p))


def masses(logits: torch.Tensor, peak: torch.Tensor, temperature: float) -> torch.Tensor:
    """int64 mass of each float32 logit; the peak has MASS_ONE even where it is infinite."""
    inverse = 1.0 / peak.new_tensor(max(temperature, MIN_TEMPERATURE))
    relative = torch.where(logits == peak, 1.0, torch.exp((logits - peak) * inverse))
    return (relative * MASS_ONE).to(torch.int64)


def mass_limit(total: torch.Tensor, top_p: float) -> torch.Tensor:
    """Mass above a token from which top_p drops it; at least 1, so that the likeliest token stays."""
    return (total.double() * top_p).to(torch.int64).clamp_(min=1)
