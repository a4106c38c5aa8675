"""Every Triton kernel in Triton's interpreter against the reference.

Only float32 and float16: the interpreter's bfloat16 arithmetic is not a GPU's. bfloat16 runs in tests/gpu.
"""

from dataclasses import replace

import pytest
import torch
from pagewire_kernels.triton import TritonKernels, candidates, launch, paged_decode, tiled_linear
from support import kernel_checks, sampling_checks
from support.kernel_cases import (
    ATTENTION_CASES,
    SHARED_CASES,
    TOLERANCE,
    AttentionCase,
    attention_inputs,
    poison_allocations,
    sampling_batch,
)
from triton import knobs

pytestmark = [
    pytest.mark.skipif(
        not knobs.runtime.interpret,
        reason="Triton is not in interpreter mode (a GPU is present): tests/gpu runs the same cases compiled",
    ),
    # The interpreter computes masked-off lanes with numpy, which warns where a GPU does not.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
DECODE_CASES = tuple(
    case for case in ATTENTION_CASES if case.name.startswith("decode") and max(kv for _, kv in case.sequences) > 256
)
HALF_CASES = tuple(case for case in ATTENTION_CASES if "gqa3" in case.name)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> TritonKernels:
    poison_allocations(monkeypatch)
    return TritonKernels()


@pytest.mark.parametrize("case", ATTENTION_CASES, ids=lambda case: case.name)
def test_attention_float32(kernels: TritonKernels, case: AttentionCase) -> None:
    kernel_checks.check_attention(kernels, case, torch.float32)


@pytest.mark.parametrize("case", HALF_CASES, ids=lambda case: case.name)
def test_attention_float16(kernels: TritonKernels, case: AttentionCase) -> None:
    kernel_checks.check_attention(kernels, case, torch.float16)


@pytest.mark.parametrize("case", ATTENTION_CASES, ids=lambda case: case.name)
def test_rotary_kv_write(kernels: TritonKernels, case: AttentionCase) -> None:
    for normed in (False, True):
        kernel_checks.check_rotary(kernels, case, torch.float32, normed=normed)


@pytest.mark.parametrize("size", kernel_checks.ROW_SIZES)
def test_row_kernels(kernels: TritonKernels, size: int) -> None:
    for dtype in (torch.float32, torch.float16):
        kernel_checks.check_norms(kernels, size, dtype)
        kernel_checks.check_silu_mul(kernels, size, dtype)


@pytest.mark.parametrize("case", SHARED_CASES, ids=lambda case: case.name)
def test_attention_over_shared_pages(kernels: TritonKernels, case: AttentionCase) -> None:
    kernel_checks.check_shared_attention(kernels, case, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_few_sequences_are_cut_finely(kernels: TritonKernels, dtype: torch.dtype) -> None:
    kernel_checks.check_few_sequences(kernels, dtype)


@pytest.mark.parametrize("case", DECODE_CASES, ids=lambda case: case.name)
def test_only_long_sequences_are_split_where_lengths_differ(
    kernels: TritonKernels, case: AttentionCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged_decode, "num_processors", lambda device: 1)
    monkeypatch.setattr(launch, "LONG_SPLIT_TOKENS", 128)
    inputs = attention_inputs(case)
    heads = (len(case.sequences), case.num_kv_heads, inputs.batch.max_kv_len, 1)
    assert launch.decode_splits(*heads, uneven=True)[1] == 128
    assert launch.decode_splits(*heads, uneven=False)[0] < launch.decode_splits(*heads, uneven=True)[0]
    expected = kernel_checks.REFERENCE.paged_attention(inputs.q, inputs.kv_pages, inputs.batch, inputs.scale)
    actual = kernels.paged_attention(inputs.q, inputs.kv_pages, replace(inputs.batch, uneven=True), inputs.scale)
    torch.testing.assert_close(actual, expected, **TOLERANCE[torch.float32])


@pytest.mark.parametrize("case", HALF_CASES, ids=lambda case: case.name)
def test_fp8_pages(kernels: TritonKernels, case: AttentionCase) -> None:
    """Read alone: the interpreter does not carry when it rounds to float8."""
    kernel_checks.check_attention(kernels, case, torch.float32, page_dtype=torch.float8_e4m3fn)


def test_linear_of_few_rows(kernels: TritonKernels) -> None:
    kernel_checks.check_linear(kernels, torch.float16)


@pytest.mark.parametrize("splits", [1, 2, 4])
def test_linear_by_tiles(splits: int) -> None:
    """Rows cut from a wider tensor, more than one tile of them, the last not full; the split inputs' counters end as
    they were."""
    x, weight, bias = torch.randn(70, 768)[:, :512].half(), torch.randn(64, 512).half(), torch.randn(64).half()
    counters = torch.zeros(8, dtype=torch.int32)
    tiles = tiled_linear.LinearTiles(outputs=32, splits=splits, stages=1)
    found = tiled_linear.tiled_linear(x, weight, bias, counters, tiles)
    expected = x.float() @ weight.float().t() + bias.float()
    torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=5e-2)
    assert not counters.any()


def test_tiles_are_one_wave_that_divides_the_product() -> None:
    for num_rows in range(300):
        for num_outputs, num_inputs in (
            (1024, 2048),
            (1024, 3072),
            (4096, 1024),
            (6144, 1024),
            (576, 1536),
            (100, 640),
        ):
            tiles = tiled_linear.linear_tiles(num_rows, num_outputs, num_inputs)
            if tiles is not None:
                assert -num_rows % 64 <= 16
                assert num_outputs % tiles.outputs == num_inputs % (128 * tiles.splits) == 0
                assert -(-num_rows // 64) * (num_outputs // tiles.outputs) * tiles.splits <= 132


@pytest.mark.parametrize("parameters", sampling_checks.PARAMETERS, ids=str)
def test_sampling_equals_the_reference_word_for_word(kernels: TritonKernels, parameters: dict[str, float]) -> None:
    sampling_checks.check_many_seeds(kernels, parameters, torch.float32, rows=4)


def test_what_surrounds_the_sampling_of_limited_rows(kernels: TritonKernels) -> None:
    kernel_checks.check_choices(kernels)


def test_sampling_behaviour(kernels: TritonKernels) -> None:
    sampling_checks.check_broken_rows(kernels)
    sampling_checks.check_mixed_rows(kernels)


@pytest.mark.parametrize(("capacity", "dtype"), [(64, torch.float32), (512, torch.float16)])
def test_thresholds_however_many_tokens_a_list_holds(
    monkeypatch: pytest.MonkeyPatch, capacity: int, dtype: torch.dtype
) -> None:
    """Lists that hold all kept tokens, those around the threshold, or too few to find it."""
    monkeypatch.setattr(candidates, "CAPACITY", capacity)
    listed = sampling_checks.check_thresholds(3000, dtype, shift=capacity % 5)
    assert True in listed
    assert False in listed


def test_noise_does_not_depend_on_the_tile() -> None:
    """Ids in the first, a middle and the last tile, each the only likely one beside its neighbours."""
    logits = torch.full((3, 5001), -50.0)
    for row, first in enumerate((0, 2046, 4997)):
        logits[row, first : first + 4] = 0.0
    for position in range(4):
        kernel_checks.check_samples(TritonKernels(), logits, sampling_batch(3, output_position=position))


def test_shapes_the_kernels_do_not_address_are_refused() -> None:
    case = AttentionCase(name="odd", num_heads=2, num_kv_heads=1, head_dim=80, page_size=16, sequences=((1, 3),))
    with pytest.raises(ValueError, match="power of two"):
        kernel_checks.check_attention(TritonKernels(), case, torch.float32)
