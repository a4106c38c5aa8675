"""The Triton kernels compiled, on a GPU: the interpreter's cases in three dtypes, page ids past 2**31 elements,
capture in CUDA graphs, and no compilation once a model's shapes are warm."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import triton
from pagewire_kernels import AttentionBatch, KernelSet
from pagewire_kernels.triton import TritonKernels
from support import kernel_checks, sampling_checks
from support.kernel_cases import (
    ATTENTION_CASES,
    SHARED_CASES,
    TOLERANCE,
    AttentionCase,
    attention_inputs,
    batch_to,
    poison_allocations,
    rotary_inputs,
    sampling_batch,
    share_leading_pages,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FAR_CASE = AttentionCase(
    name="far",
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    page_size=16,
    sequences=((1, 40), (1, 700), (20, 52), (17, 17)),
)
MANY_CASES = [
    AttentionCase(
        name=f"many-gqa{group}-d{head_dim}",
        num_heads=8 * group,
        num_kv_heads=8,
        head_dim=head_dim,
        page_size=32,
        sequences=tuple((1, length) for length in (1, 700, 0, 128, 129, 384, 31, 256, 517, 90) * 15),
    )
    for group, head_dim in ((2, 128), (4, 128), (1, 64))
]
"""Sequences enough for many rounds of all processors."""
FAR_FIRST_PAGE = 65_530
"""2**31 elements lie before page 65,536 of this shape (32,768 elements a page)."""
FAR_PAGES = 65_700


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> TritonKernels:
    poison_allocations(monkeypatch)
    return TritonKernels()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", [*ATTENTION_CASES, *MANY_CASES], ids=lambda case: case.name)
def test_attention(kernels: TritonKernels, case: AttentionCase, dtype: torch.dtype) -> None:
    kernel_checks.check_attention(kernels, case, dtype, "cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", ATTENTION_CASES, ids=lambda case: case.name)
def test_rotary_kv_write(kernels: TritonKernels, case: AttentionCase, dtype: torch.dtype) -> None:
    for normed in (False, True):
        kernel_checks.check_rotary(kernels, case, dtype, "cuda", normed=normed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [*kernel_checks.ROW_SIZES, 4096, 14336])
def test_row_kernels(kernels: TritonKernels, size: int, dtype: torch.dtype) -> None:
    kernel_checks.check_norms(kernels, size, dtype, "cuda")
    kernel_checks.check_silu_mul(kernels, size, dtype, "cuda")


def test_what_surrounds_the_sampling_of_limited_rows(kernels: TritonKernels) -> None:
    kernel_checks.check_choices(kernels, "cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", SHARED_CASES, ids=lambda case: case.name)
def test_attention_over_shared_pages(kernels: TritonKernels, case: AttentionCase, dtype: torch.dtype) -> None:
    kernel_checks.check_shared_attention(kernels, case, dtype, "cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_few_sequences_are_cut_finely(kernels: TritonKernels, dtype: torch.dtype) -> None:
    kernel_checks.check_few_sequences(kernels, dtype, "cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", ATTENTION_CASES, ids=lambda case: case.name)
def test_fp8_pages(kernels: TritonKernels, case: AttentionCase, dtype: torch.dtype) -> None:
    kernel_checks.check_fp8_write(kernels, case, dtype, "cuda")
    kernel_checks.check_attention(kernels, case, dtype, "cuda", torch.float8_e4m3fn)


@pytest.mark.parametrize("case", SHARED_CASES, ids=lambda case: case.name)
def test_shared_fp8_pages(kernels: TritonKernels, case: AttentionCase) -> None:
    kernel_checks.check_shared_attention(kernels, case, torch.bfloat16, "cuda", torch.float8_e4m3fn)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_linear_of_few_rows(kernels: TritonKernels, dtype: torch.dtype) -> None:
    kernel_checks.check_linear(kernels, dtype, "cuda")


def test_linear_of_some_tens_of_rows_depends_neither_on_timing_nor_on_other_rows(kernels: TritonKernels) -> None:
    for num_outputs, num_inputs in ((1024, 3072), (4096, 1024)):
        weight = torch.randn(num_outputs, num_inputs, device="cuda", dtype=torch.bfloat16)
        guarded = torch.full((128, num_inputs), float("nan"), device="cuda", dtype=torch.bfloat16)
        for rows in (48, 64, 120):
            guarded[:rows] = torch.randn(rows, num_inputs, device="cuda", dtype=torch.bfloat16)
            first = kernels.linear(guarded[:rows], weight, None)
            assert bool(first.isfinite().all())
            for _ in range(20):
                assert torch.equal(kernels.linear(guarded[:rows], weight, None), first)
            changed = guarded[:rows].clone()
            changed[1:] = 1.0
            assert torch.equal(kernels.linear(changed, weight, None)[0], first[0])


@pytest.mark.parametrize("parameters", sampling_checks.PARAMETERS, ids=str)
def test_sampling_equals_the_reference(kernels: TritonKernels, parameters: dict[str, float]) -> None:
    for dtype in DTYPES:
        sampling_checks.check_many_seeds(kernels, parameters, dtype, "cuda", rows=64)


@pytest.mark.parametrize(
    "check",
    [
        sampling_checks.check_kept_sets,
        sampling_checks.check_ties,
        sampling_checks.check_broken_rows,
        sampling_checks.check_mixed_rows,
        sampling_checks.check_padded_vocabulary,
        sampling_checks.check_distribution,
    ],
)
def test_sampling_behaviour(kernels: TritonKernels, check: Callable[..., None]) -> None:
    check(kernels, "cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_thresholds_of_a_large_vocabulary(dtype: torch.dtype) -> None:
    listed = [sampling_checks.check_thresholds(128_256, dtype, shift, "cuda") for shift in range(6)]
    assert {True, False} <= {of_row for rows in listed for of_row in rows}


def test_cpu_and_gpu_sample_the_same_tokens() -> None:
    logits = kernel_checks.random_logits(64, 49_152)
    parameters = {"temperature": 0.8, "top_p": 0.95, "top_k": 100}
    on_cpu = kernel_checks.REFERENCE.sample(logits, sampling_batch(64, **parameters))[0]
    on_gpu = TritonKernels().sample(logits.cuda(), sampling_batch(64, "cuda", **parameters))[0]
    assert on_gpu.tolist() == on_cpu.tolist()


def far_batch(batch: AttentionBatch, page_size: int) -> AttentionBatch:
    """The same batch with every page FAR_FIRST_PAGE later; its garbage stays garbage."""
    slots = torch.where(batch.slots >= 0, batch.slots + FAR_FIRST_PAGE * page_size, batch.slots)
    return replace(batch, page_tables=batch.page_tables + FAR_FIRST_PAGE, slots=slots)


def test_pages_past_two_to_the_31_elements_give_the_same_bits() -> None:
    if torch.cuda.mem_get_info()[0] < 8 << 30:
        pytest.skip("needs 8 GiB of free GPU memory")
    kernels = TritonKernels()
    near, rotary = attention_inputs(FAR_CASE, torch.bfloat16, "cuda"), rotary_inputs(FAR_CASE, torch.bfloat16, "cuda")
    pool = torch.zeros(FAR_PAGES, *near.kv_pages.shape[1:], dtype=torch.bfloat16, device="cuda")
    far_pages = pool[FAR_FIRST_PAGE : FAR_FIRST_PAGE + near.kv_pages.shape[0]]
    assert pool[:FAR_FIRST_PAGE].numel() < 2**31 < pool[: FAR_FIRST_PAGE + near.kv_pages.shape[0]].numel()

    far_pages.copy_(near.kv_pages)
    expected = kernels.paged_attention(near.q, near.kv_pages, near.batch, near.scale)
    actual = kernels.paged_attention(near.q, pool, far_batch(near.batch, FAR_CASE.page_size), near.scale)
    assert torch.equal(actual, expected)

    far_pages.zero_()
    near_pages = torch.zeros_like(near.kv_pages)
    heads = (FAR_CASE.num_heads, FAR_CASE.num_kv_heads)
    kernels.rotary_kv_write(rotary.qkv, rotary.cos_sin, near_pages, rotary.batch, *heads)
    kernels.rotary_kv_write(rotary.qkv, rotary.cos_sin, pool, far_batch(rotary.batch, FAR_CASE.page_size), *heads)
    assert bool(near_pages.any())
    assert torch.equal(far_pages, near_pages)
    assert not pool[:FAR_FIRST_PAGE].any()


def replayed(run: Callable[[], torch.Tensor], change: Callable[[], None]) -> torch.Tensor:
    """Captures ``run`` in a CUDA graph, changes its inputs in place and replays it."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    change()
    graph.replay()
    return out


@pytest.mark.parametrize("case", [case for case in ATTENTION_CASES if "gqa3" in case.name], ids=lambda case: case.name)
def test_attention_in_a_graph_follows_its_inputs(case: AttentionCase) -> None:
    kernels, inputs = TritonKernels(), attention_inputs(case, torch.bfloat16, "cuda")
    other = attention_inputs(case, torch.bfloat16, "cuda", seed=7)

    def change() -> None:
        inputs.q.copy_(other.q)
        inputs.kv_pages.copy_(other.kv_pages)
        inputs.batch.page_tables.copy_(other.batch.page_tables)

    out = replayed(lambda: kernels.paged_attention(inputs.q, inputs.kv_pages, inputs.batch, inputs.scale), change)
    expected = kernel_checks.REFERENCE.paged_attention(other.q, other.kv_pages, other.batch, other.scale)
    torch.testing.assert_close(out, expected, **TOLERANCE[torch.bfloat16])


def test_row_kernels_in_a_graph_follow_their_inputs() -> None:
    kernels = TritonKernels()
    x, residual = torch.randn(4, 576, device="cuda"), torch.randn(4, 576, device="cuda")
    weight, fresh = torch.randn(576, device="cuda"), torch.randn(4, 576, device="cuda")

    def run() -> torch.Tensor:
        normed = kernels.add_rms_norm(kernels.rms_norm(x, weight, 1e-5), residual, weight, 1e-5)
        return kernels.silu_mul(normed)

    def change() -> None:
        x.copy_(fresh)
        residual.zero_()

    out = replayed(run, change)
    normed = kernel_checks.REFERENCE.rms_norm(fresh, weight, 1e-5)
    expected = kernel_checks.REFERENCE.silu_mul(kernel_checks.REFERENCE.rms_norm(normed, weight, 1e-5))
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [50, 120])
def test_linear_in_a_graph_follows_its_inputs(rows: int) -> None:
    kernels = TritonKernels()
    x = torch.randn(rows, 3072, device="cuda", dtype=torch.bfloat16)
    weight, fresh = torch.randn(1024, 3072, device="cuda", dtype=torch.bfloat16), torch.randn_like(x)
    out = replayed(lambda: kernels.linear(x, weight, None), lambda: x.copy_(fresh))
    assert torch.equal(out, kernels.linear(fresh, weight, None))


def test_rotary_kv_write_in_a_graph_follows_its_inputs() -> None:
    case = ATTENTION_CASES[-1]
    kernels, inputs = TritonKernels(), rotary_inputs(case, torch.float32, "cuda")
    fresh = torch.randn_like(inputs.qkv)
    heads = (case.num_heads, case.num_kv_heads)

    def run() -> torch.Tensor:
        return kernels.rotary_kv_write(inputs.qkv, inputs.cos_sin, inputs.kv_pages, inputs.batch, *heads)

    def change() -> None:
        inputs.qkv.copy_(fresh)

    out = replayed(run, change)
    pages = torch.full_like(inputs.kv_pages, float("nan"))
    expected = kernel_checks.REFERENCE.rotary_kv_write(fresh, inputs.cos_sin, pages, inputs.batch, *heads)
    torch.testing.assert_close(out, expected, **TOLERANCE[torch.float32])
    torch.testing.assert_close(inputs.kv_pages, pages, equal_nan=True, **TOLERANCE[torch.float32])


@pytest.mark.parametrize("case", SHARED_CASES, ids=lambda case: case.name)
def test_what_was_just_written_is_read_beside_a_shared_prefix(case: AttentionCase) -> None:
    """Layers one after the other in a graph: attention to own tokens begins before the kernel of the shared ones has
    ended, but not before the one that writes the newest keys and queries."""
    kernels, heads = TritonKernels(), (case.num_heads, case.num_kv_heads)
    inputs = share_leading_pages(attention_inputs(case, torch.bfloat16, "cuda"), case)
    rotary = [rotary_inputs(case, torch.bfloat16, "cuda", seed=layer) for layer in range(12)]
    pages = [inputs.kv_pages.clone() for _ in rotary]
    fresh = [torch.randn_like(layer.qkv) for layer in rotary]

    def layer_outputs(kernels: KernelSet) -> torch.Tensor:
        outputs = []
        for qkv, layer_pages in zip([layer.qkv.clone() for layer in rotary], pages, strict=True):
            q = kernels.rotary_kv_write(qkv, rotary[0].cos_sin, layer_pages, inputs.batch, *heads)
            outputs.append(kernels.paged_attention(q, layer_pages, inputs.batch, inputs.scale))
        return torch.stack(outputs)

    def change() -> None:
        for layer, qkv in zip(rotary, fresh, strict=True):
            layer.qkv.copy_(qkv)

    out = replayed(lambda: layer_outputs(kernels), change)
    torch.testing.assert_close(out, layer_outputs(kernel_checks.REFERENCE), **TOLERANCE[torch.bfloat16])


def test_sampling_in_a_graph_follows_its_inputs() -> None:
    kernels = TritonKernels()
    logits = kernel_checks.random_logits(8, 5000, device="cuda")
    fresh = logits.roll(11, dims=1)
    batch = sampling_batch(8, "cuda", temperature=0.9, top_k=50, top_p=0.9, min_p=0.01)

    def change() -> None:
        logits.copy_(fresh)
        batch.output_positions.fill_(12)

    out = replayed(lambda: kernels.sample(logits, batch)[0], change)
    assert out.tolist() == kernel_checks.REFERENCE.sample(fresh, batch)[0].tolist()


def run_step(kernels: TritonKernels, num_decodes: int, chunk: int, offset: int) -> None:
    """All kernels of a step once; metadata starts ``offset`` elements into its buffers, as views of a shared one
    would."""
    sequences = ((1, 30),) * num_decodes + (((chunk, chunk + 5),) if chunk else ())
    case = AttentionCase(name="warm", num_heads=9, num_kv_heads=3, head_dim=64, page_size=32, sequences=sequences)
    inputs, rotary = attention_inputs(case, torch.bfloat16), rotary_inputs(case, torch.bfloat16, "cuda")

    def shifted(tensor: torch.Tensor) -> torch.Tensor:
        buffer = torch.zeros(tensor.numel() + offset, dtype=tensor.dtype, device="cuda")
        return buffer[offset:].view(tensor.shape).copy_(tensor)

    batch = replace(
        batch_to(inputs.batch, "cuda"),
        max_kv_len=2048,
        **{name: shifted(getattr(inputs.batch, name)) for name in ("page_tables", "kv_lens", "query_starts", "slots")},
    )
    kernels.rotary_kv_write(rotary.qkv, rotary.cos_sin, inputs.kv_pages.cuda(), batch, 9, 3)
    kernels.paged_attention(inputs.q.cuda(), inputs.kv_pages.cuda(), batch, 0.125)
    hidden = torch.randn(case.num_tokens, 576, dtype=torch.bfloat16, device="cuda")
    kernels.silu_mul(kernels.add_rms_norm(kernels.rms_norm(hidden, hidden[0], 1e-5), hidden, hidden[0], 1e-5))
    logits = torch.randn(num_decodes, 5000, device="cuda")
    for parameters in ({"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.9}):
        kernels.sample(logits, sampling_batch(num_decodes, "cuda", **parameters))


def test_nothing_is_compiled_once_the_split_counts_are_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch sizes of 1, of multiples of 16 and neither, aligned and odd addresses: all run what the warm-up built."""
    kernels = TritonKernels()
    for num_decodes, chunk in ((1, 0), (3, 7), (16, 300), (24, 0), (48, 7), (96, 0), (200, 0)):
        run_step(kernels, num_decodes, chunk, offset=0)
    compiled: list[str] = []
    monkeypatch.setattr(
        triton.knobs.runtime, "jit_post_compile_hook", lambda **details: compiled.append(str(details.get("repr")))
    )
    for num_decodes, chunk in ((1, 1), (2, 16), (15, 0), (16, 17), (17, 512), (33, 0), (128, 3)):
        run_step(kernels, num_decodes, chunk, offset=num_decodes % 3)
    assert compiled == []
