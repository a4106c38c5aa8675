"""What every kernel set has to fulfil, called by the interpreter's, the CPU set's and the GPU's tests alike."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from pagewire_kernels import KernelSet, QkNorm, SamplingBatch
from pagewire_kernels.interface import MAX_FP8
from pagewire_kernels.reference import ReferenceKernels
from support.kernel_cases import (
    FEW_CASE,
    TOLERANCE,
    AttentionCase,
    attention_inputs,
    rotary_inputs,
    sampling_batch,
    seeded,
    share_leading_pages,
)

REFERENCE = ReferenceKernels()
ROW_SIZES = (64, 576, 1000)


def check_attention(
    kernels: KernelSet,
    case: AttentionCase,
    dtype: torch.dtype,
    device: str = "cpu",
    page_dtype: torch.dtype | None = None,
) -> None:
    inputs = attention_inputs(case, dtype, device, page_dtype=page_dtype)
    expected = REFERENCE.paged_attention(inputs.q, inputs.kv_pages, inputs.batch, inputs.scale)
    actual = kernels.paged_attention(inputs.q, inputs.kv_pages, inputs.batch, inputs.scale)
    assert actual.is_contiguous()
    torch.testing.assert_close(actual, expected, **TOLERANCE[dtype])


def check_shared_attention(
    kernels: KernelSet,
    case: AttentionCase,
    dtype: torch.dtype,
    device: str = "cpu",
    page_dtype: torch.dtype | None = None,
) -> None:
    """Shared pages read once give what every sequence reading its own gives; counters are as they were."""
    inputs = share_leading_pages(attention_inputs(case, dtype, device, page_dtype=page_dtype), case)
    expected = REFERENCE.paged_attention(inputs.q, inputs.kv_pages, inputs.batch, inputs.scale)
    for _ in range(2):
        actual = kernels.paged_attention(inputs.q, inputs.kv_pages, inputs.batch, inputs.scale)
        torch.testing.assert_close(actual, expected, **TOLERANCE[dtype])


def check_few_sequences(kernels: KernelSet, dtype: torch.dtype, device: str = "cpu") -> None:
    """Sequences that could be long are cut into most splits; counters are as they were."""
    inputs = attention_inputs(FEW_CASE, dtype, device)
    batch = replace(inputs.batch, max_kv_len=4096)
    expected = REFERENCE.paged_attention(inputs.q, inputs.kv_pages, inputs.batch, inputs.scale)
    for _ in range(2):
        actual = kernels.paged_attention(inputs.q, inputs.kv_pages, batch, inputs.scale)
        torch.testing.assert_close(actual, expected, **TOLERANCE[dtype])


def check_rotary(
    kernels: KernelSet, case: AttentionCase, dtype: torch.dtype, device: str = "cpu", *, normed: bool = False
) -> None:
    inputs = rotary_inputs(case, dtype, device)
    pages = inputs.kv_pages.clone()
    heads = (case.num_heads, case.num_kv_heads, _qk_norm(case.head_dim, dtype, device) if normed else None)
    expected_pages = inputs.kv_pages
    expected = REFERENCE.rotary_kv_write(inputs.qkv.clone(), inputs.cos_sin, expected_pages, inputs.batch, *heads)
    actual = kernels.rotary_kv_write(inputs.qkv.clone(), inputs.cos_sin, pages, inputs.batch, *heads)
    torch.testing.assert_close(actual, expected, **TOLERANCE[dtype])
    # equal_nan: a slot nobody owns must still hold its poison
    torch.testing.assert_close(pages, expected_pages, equal_nan=True, **TOLERANCE[dtype])


def check_fp8_write(kernels: KernelSet, case: AttentionCase, dtype: torch.dtype, device: str = "cpu") -> None:
    """Keys and values are written in float8, cut to its range."""
    inputs = rotary_inputs(case, dtype, device)
    qkv = inputs.qkv * 200  # some beyond the largest value
    pages, expected = (inputs.kv_pages.to(torch.float8_e4m3fn) for _ in range(2))
    heads = (case.num_heads, case.num_kv_heads)
    kernels.rotary_kv_write(qkv.clone(), inputs.cos_sin, pages, inputs.batch, *heads)
    REFERENCE.rotary_kv_write(qkv.clone(), inputs.cos_sin, expected, inputs.batch, *heads)
    found, wanted = pages.float(), expected.float()
    assert float(found[~found.isnan()].abs().max()) == MAX_FP8
    # A product that rounds otherwise, or a second rounding on the way, may land on the neighbouring value.
    torch.testing.assert_close(found, wanted, equal_nan=True, rtol=0.13, atol=2**-6)
    assert float(((found == wanted) | wanted.isnan()).float().mean()) > 0.98


def _qk_norm(head_dim: int, dtype: torch.dtype, device: str) -> QkNorm:
    query, key = (1 + torch.randn(head_dim, generator=seeded(seed)) * 0.2 for seed in (1, 2))
    return QkNorm(query_weight=query.to(device, dtype), key_weight=key.to(device, dtype), eps=1e-6)


def check_norms(kernels: KernelSet, size: int, dtype: torch.dtype, device: str = "cpu") -> None:
    generator = seeded(size)
    x, residual = (torch.randn(3, size, generator=generator).to(device, dtype) for _ in range(2))
    weight = torch.randn(size, generator=generator).to(device, dtype)
    expected = REFERENCE.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(kernels.rms_norm(x, weight, 1e-5), expected, **TOLERANCE[dtype])
    expected_residual, actual_residual = residual.clone(), residual.clone()
    expected = REFERENCE.add_rms_norm(x, expected_residual, weight, 1e-5)
    actual = kernels.add_rms_norm(x, actual_residual, weight, 1e-5)
    torch.testing.assert_close(actual, expected, **TOLERANCE[dtype])
    torch.testing.assert_close(actual_residual, expected_residual, rtol=0, atol=0)


def check_linear(kernels: KernelSet, dtype: torch.dtype, device: str = "cpu") -> None:
    """Rows and sizes at every edge of the kernels for few rows, twice: counters must be as they were."""
    generator = seeded(1)
    sizes = (
        ((64, 512), (128, 1024))
        if device == "cpu"
        else ((64, 512), (1024, 1024), (1024, 3072), (4096, 1024), (1088, 4096), (300, 512), (16384, 1024))
    )
    for num_outputs, num_inputs in sizes:
        weight = torch.randn(num_outputs, num_inputs, generator=generator).to(device, dtype)
        bias = torch.randn(num_outputs, generator=generator).to(device, dtype)
        for rows in (1, 2, 16, 17, 32, 33, 64, 65, *(() if device == "cpu" else (96, 128, 200, 256))):
            x = torch.randn(rows, num_inputs, generator=generator).to(device, dtype) * num_inputs**-0.5
            for bias_or_none in (bias, None):
                expected = F.linear(x.float(), weight.float(), None if bias_or_none is None else bias_or_none.float())
                for _ in range(2):
                    actual = kernels.linear(x, weight, bias_or_none)
                    torch.testing.assert_close(actual.float(), expected, rtol=2e-2, atol=2e-2)


def check_silu_mul(kernels: KernelSet, size: int, dtype: torch.dtype, device: str = "cpu") -> None:
    gate_up = (torch.randn(3, 2 * size, generator=seeded(size)) * 4).to(device, dtype)
    torch.testing.assert_close(kernels.silu_mul(gate_up), REFERENCE.silu_mul(gate_up), **TOLERANCE[dtype])


def check_samples(kernels: KernelSet, logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """Asserts the reference's ids and statuses word for word and returns the ids."""
    expected_ids, expected_status = REFERENCE.sample(logits, batch)
    token_ids, status = kernels.sample(logits, batch)
    assert (token_ids.dtype, status.dtype) == (torch.int32, torch.uint8)
    assert status.tolist() == expected_status.tolist()
    fine = expected_status == 0
    assert token_ids[fine].tolist() == expected_ids[fine].tolist()
    assert bool(((token_ids >= 0) & (token_ids < logits.shape[1])).all())
    return token_ids


def random_logits(rows: int, vocab: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    return (torch.randn(rows, vocab, generator=seeded(vocab)) * 3).to(device, dtype)


def padded_vocabulary(rows: int, vocab: int, device: str = "cpu") -> torch.Tensor:
    """Logits [rows, vocab] cut from a wider tensor whose other columns are tempting."""
    wide = torch.full((rows, vocab + 20), 1e9, device=device)
    wide[:, :vocab] = random_logits(rows, vocab, device=device)
    return wide[:, :vocab]


def check_choices(kernels: KernelSet, device: str = "cpu") -> None:
    """Masks of some rows, then rows of every outcome; of vocabularies of full and broken words."""
    nan, nothing = float("nan"), float("-inf")
    for vocab in (2048, 1117):
        logits = random_logits(5, vocab, device=device)
        logits[1, 3], logits[2, 1], logits[2, 5] = nan, nan, nothing
        places = torch.tensor([4, 0, 2, 1], device=device)
        words = torch.randint(-(2**31), 2**31, (4, -(-vocab // 32)), generator=seeded(vocab)).to(device, torch.int32)
        words[1] = 0
        expected = logits.clone()
        REFERENCE.forbid(expected, places, words)
        kernels.forbid(logits, places, words)
        torch.testing.assert_close(logits, expected, rtol=0, atol=0, equal_nan=True)
        token_ids, statuses = kernels.sample(logits, sampling_batch(5, device, temperature=0.0))
        faults = torch.tensor([2, 2, 1, 1, 2], dtype=torch.int32, device=device)
        packed = torch.full((2, 7), 9, dtype=torch.int32, device=device)
        kernels.settle(logits, token_ids, statuses, faults, torch.tensor([6, 0, 1, 3, 4], device=device), packed)
        best = logits[[3, 4]].argmax(dim=1).tolist()
        assert packed.tolist() == [[0, 0, 9, best[0], best[1], 9, 0], [1, 1, 9, 0, 0, 9, 2]]
