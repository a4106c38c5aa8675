"""The CPU kernel set against the reference, over steps that share its plan and scratch buffer."""

import pytest
import torch
from pagewire_kernels.cpu import CpuKernels
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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_attention(case: AttentionCase, dtype: torch.dtype) -> None:
    kernel_checks.check_attention(CpuKernels(), case, dtype)


@pytest.mark.parametrize("num_shared", [1, 4, 5])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention_over_a_common_prefix(dtype: torch.dtype, num_shared: int) -> None:
    inputs = attention_inputs(SHARING, dtype)
    page_tables = inputs.batch.page_tables.clone()
    for sequence, (_, kv_len) in enumerate(SHARING.sequences):
        if kv_len > 5 * SHARING.page_size:
            page_tables[sequence, :num_shared] = page_tables[0, :num_shared]
    batch = attention_batch(SHARING, page_tables)
    expected = kernel_checks.REFERENCE.paged_attention(inputs.q, inputs.kv_pages, batch, inputs.scale)
    actual = CpuKernels().paged_attention(inputs.q, inputs.kv_pages, batch, inputs.scale)
    torch.testing.assert_close(actual, expected, **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [64, 576])
def test_norms_of_many_tokens(size: int, dtype: torch.dtype) -> None:
    x = torch.randn(100, size).to(dtype)
    weight = torch.randn(size).to(dtype)
    before = x.clone()
    expected = kernel_checks.REFERENCE.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(CpuKernels().rms_norm(x, weight, 1e-5), expected, **TOLERANCE[dtype])
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", ATTENTION_CASES, ids=lambda case: case.name)
def test_rotary_kv_write(case: AttentionCase, dtype: torch.dtype) -> None:
    kernel_checks.check_rotary(CpuKernels(), case, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", kernel_checks.ROW_SIZES)
def test_row_kernels(size: int, dtype: torch.dtype) -> None:
    kernel_checks.check_norms(CpuKernels(), size, dtype)
    kernel_checks.check_silu_mul(CpuKernels(), size, dtype)


def test_one_set_serves_steps_and_layers_of_any_shape() -> None:
    kernels = CpuKernels()
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


def test_rows_past_the_last_sequence_are_zero() -> None:
    case = ATTENTION_CASES[0]
    inputs = attention_inputs(case)
    q = torch.cat([inputs.q, torch.full((3, *inputs.q.shape[1:]), float("nan"))])
    actual = CpuKernels().paged_attention(q, inputs.kv_pages, inputs.batch, inputs.scale)
    assert not actual[case.num_tokens :].any()
    assert bool(actual[: case.num_tokens].isfinite().all())


@pytest.mark.parametrize("parameters", sampling_checks.PARAMETERS, ids=str)
def test_sampling_equals_the_reference_word_for_word(parameters: dict[str, float]) -> None:
    for dtype in DTYPES:
        sampling_checks.check_many_seeds(CpuKernels(), parameters, dtype, rows=24)


def test_sampling_behaviour() -> None:
    kernels = CpuKernels()
    sampling_checks.check_kept_sets(kernels)
    sampling_checks.check_ties(kernels)
    sampling_checks.check_broken_rows(kernels)
    sampling_checks.check_mixed_rows(kernels)
    sampling_checks.check_padded_vocabulary(kernels)
    sampling_checks.check_distribution(kernels)


@pytest.mark.parametrize("vocab", [640, 650])
def test_the_lowest_of_several_maxima_wins(vocab: int) -> None:
    for first, second in ((0, 639), (127, 128), (300, 301), (255, 511)):
        logits = torch.full((2, vocab), -5.0, dtype=torch.bfloat16)
        logits[:, [first, second]] = 2.0
        logits[1, vocab - 1] = float("nan")
        token_ids, status = CpuKernels().sample(logits, sampling_batch(2, temperature=0.0))
        assert int(token_ids[0]) == first
        assert status.tolist() == [0, 1]
        assert 0 <= int(token_ids[1]) < vocab
