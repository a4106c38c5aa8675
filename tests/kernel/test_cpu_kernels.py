"""Both CPU kernel sets against the reference, over steps that share their plan and scratch buffer."""

import pytest
import torch
from pagewire_kernels.cpu import CpuKernels, NativeCpuKernels
from support import kernel_checks, sampling_checks
from support.kernel_cases import (
    ATTENTION_CASES,
    TOLERANCE,
    AttentionCase,
    attention_batch,
    attention_inputs,
    sampling_batch,
)

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
RAGGED = AttentionCase(
    name="ragged-decodes", num_heads=9, num_kv_heads=3, head_dim=64, page_size=16,
    sequences=((1, 900), (1, 3), (1, 880), (1, 33), (1, 31), (1, 16), (1, 1), (1, 450), (1, 0), (1, 461)),
)  # fmt: skip
LONG_CHUNK = AttentionCase(
    name="chunk-of-several-tiles", num_heads=6, num_kv_heads=2, head_dim=64, page_size=32,
    sequences=((300, 300), (140, 500)),
)  # fmt: skip
SHARING = AttentionCase(
    name="decodes-with-a-common-prefix", num_heads=9, num_kv_heads=3, head_dim=64, page_size=16,
    sequences=(
        (1, 100), (1, 81), (1, 700), (1, 97), (1, 0), (1, 83), (1, 112), (1, 96), (1, 113), (1, 20), (1, 81), (4, 90)
    ),
)  # fmt: skip
CASES = (*ATTENTION_CASES, RAGGED, LONG_CHUNK)


@pytest.fixture(scope="module", params=[CpuKernels, NativeCpuKernels], ids=["torch", "native"])
def kernels(request: pytest.FixtureRequest) -> CpuKernels:
    made: CpuKernels = request.param()
    return made


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_attention(kernels: CpuKernels, case: AttentionCase, dtype: torch.dtype) -> None:
    kernel_checks.check_attention(kernels, case, dtype)


@pytest.mark.parametrize("num_shared", [1, 4, 5])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention_over_a_common_prefix(kernels: CpuKernels, dtype: torch.dtype, num_shared: int) -> None:
    inputs = attention_inputs(SHARING, dtype)
    page_tables = inputs.batch.page_tables.clone()
    for sequence, (_, kv_len) in enumerate(SHARING.sequences):
        if kv_len > 5 * SHARING.page_size:
            page_tables[sequence, :num_shared] = page_tables[0, :num_shared]
    batch = attention_batch(SHARING, page_tables)
    expected = kernel_checks.REFERENCE.paged_attention(inputs.q, inputs.kv_pages, batch, inputs.scale)
    actual = kernels.paged_attention(inputs.q, inputs.kv_pages, batch, inputs.scale)
    torch.testing.assert_close(actual, expected, **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [64, 576])
def test_norms_of_many_tokens(kernels: CpuKernels, size: int, dtype: torch.dtype) -> None:
    x = torch.randn(100, size).to(dtype)
    weight = torch.randn(size).to(dtype)
    before = x.clone()
    expected = kernel_checks.REFERENCE.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(kernels.rms_norm(x, weight, 1e-5), expected, **TOLERANCE[dtype])
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", ATTENTION_CASES, ids=lambda case: case.name)
def test_rotary_kv_write(kernels: CpuKernels, case: AttentionCase, dtype: torch.dtype) -> None:
    for normed in (False, True):
        kernel_checks.check_rotary(kernels, case, dtype, normed=normed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", kernel_checks.ROW_SIZES)
def test_row_kernels(kernels: CpuKernels, size: int, dtype: torch.dtype) -> None:
    kernel_checks.check_norms(kernels, size, dtype)
    kernel_checks.check_silu_mul(kernels, size, dtype)


def test_what_surrounds_the_sampling_of_limited_rows(kernels: CpuKernels) -> None:
    kernel_checks.check_choices(kernels)


def test_one_set_serves_steps_and_layers_of_any_shape(kernels: CpuKernels) -> None:
    for case in (*CASES, *reversed(CASES)):
        for layer in range(2):
            kernel_checks.check_rotary(kernels, case, torch.float32)
            inputs = attention_inputs(case, seed=layer)
            for _ in range(2):
                actual = kernels.paged_attention(inputs.q, inputs.kv_pages, inputs.batch, inputs.scale)
                expected = kernel_checks.REFERENCE.paged_attention(
                    inputs.q, inputs.kv_pages, inputs.batch, inputs.scale
                )
                torch.testing.assert_close(actual, expected, **TOLERANCE[torch.float32])


def test_rows_past_the_last_sequence_are_zero(kernels: CpuKernels) -> None:
    case = ATTENTION_CASES[0]
    inputs = attention_inputs(case)
    q = torch.cat([inputs.q, torch.full((3, *inputs.q.shape[1:]), float("nan"))])
    actual = kernels.paged_attention(q, inputs.kv_pages, inputs.batch, inputs.scale)
    assert not actual[case.num_tokens :].any()
    assert bool(actual[: case.num_tokens].isfinite().all())


@pytest.mark.parametrize("parameters", sampling_checks.PARAMETERS, ids=str)
def test_sampling_equals_the_reference_word_for_word(kernels: CpuKernels, parameters: dict[str, float]) -> None:
    for dtype in DTYPES:
        sampling_checks.check_many_seeds(kernels, parameters, dtype, rows=24)


def test_smp_03_sampling_behaviour(kernels: CpuKernels) -> None:
    sampling_checks.check_kept_sets(kernels)
    sampling_checks.check_ties(kernels)
    sampling_checks.check_broken_rows(kernels)
    sampling_checks.check_mixed_rows(kernels)
    sampling_checks.check_padded_vocabulary(kernels)
    sampling_checks.check_distribution(kernels)


@pytest.mark.parametrize("vocab", [640, 650])
def test_the_lowest_of_several_maxima_wins(kernels: CpuKernels, vocab: int) -> None:
    for first, second in ((0, 639), (127, 128), (300, 301), (255, 511)):
        logits = torch.full((2, vocab), -5.0, dtype=torch.bfloat16)
        logits[:, [first, second]] = 2.0
        logits[1, vocab - 1] = float("nan")
        token_ids, status = kernels.sample(logits, sampling_batch(2, temperature=0.0))
        assert int(token_ids[0]) == first
        assert status.tolist() == [0, 1]
        assert 0 <= int(token_ids[1]) < vocab
