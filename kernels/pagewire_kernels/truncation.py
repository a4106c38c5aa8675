"""What min_p, top_k and top_p keep, written so that every kernel set can compute it exactly and without a sort.

Each step keeps the tokens at or above some value, so a row's kept set is ``scaled >= threshold``. With ``scaled`` the
row's ``logit / temperature`` and ``peak`` its maximum:

* min_p keeps ``scaled >= peak + log(min_p)``;
* top_k keeps a token if fewer than ``top_k`` tokens lie strictly above it (ties at the border all stay);
* top_p keeps a token if the mass strictly above it is below ``top_p`` of the mass that the steps before kept.

Mass is counted in whole units of 2**-40 of the likeliest token's: integer sums do not depend on the order of summation,
so a CPU's sort, a GPU's bisection and any split of a row agree.
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


def masses(scaled: torch.Tensor, peak: torch.Tensor) -> torch.Tensor:
    """int64 mass of each value; the peak has MASS_ONE even where it is infinite."""
    relative = torch.where(scaled == peak, 1.0, torch.exp(scaled - peak))
    return (relative * MASS_ONE).to(torch.int64)


def mass_limit(total: torch.Tensor, top_p: float) -> torch.Tensor:
    """Mass above a token from which top_p drops it; at least 1, so that the likeliest token stays."""
    return (total.double() * top_p).to(torch.int64).clamp_(min=1)
