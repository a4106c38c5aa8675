"""Rows with penalties, biases and what is ruled out are drawn with exact probabilities, truncated or not."""

from typing import Any

import pytest
from pagewire_kernels.cpu import CpuKernels, NativeCpuKernels
from support.rule_distribution import CASES, check_rule_distribution


@pytest.mark.parametrize(("options", "parameters"), CASES)
@pytest.mark.parametrize("kernels", [CpuKernels, NativeCpuKernels], ids=["torch", "native"])
def test_rows_with_options_have_exact_probabilities(
    kernels: type[CpuKernels], options: dict[str, Any], parameters: dict[str, float]
) -> None:
    check_rule_distribution(kernels(), options, parameters)
