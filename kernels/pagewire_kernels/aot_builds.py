"""What is compiled ahead of time: each kernel with the types and constants of representative launches.

The table holds the shapes of a Llama with 8 and one with 3 key/value heads, in bfloat16 and float32, launched as the
host functions launch them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from pagewire_kernels.interface import MAX_SHARED_PARTS, SHARED_TILE_ROWS
from pagewire_kernels.triton import (
    bracket,
    candidates,
    choices,
    float8_linear,
    fragment_linear,
    launch,
    packed_linear,
    packed_weight,
    paged_chunk,
    paged_decode,
    rms_norm,
    rotary_kv_write,
    sampler,
    shared_prefix,
    silu_mul,
    skinny_linear,
    tiled_linear,
    truncated_choice,
    unpack_weight,
)


@dataclass(frozen=True, slots=True)
class Build:
    """One compilation: the kernel, the types of its runtime arguments, its constexprs and its launch options."""

    name: str
    kernel: Any
    types: dict[str, str]
    constants: dict[str, Any]
    num_warps: int


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's attention shape."""

    name: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    dtype: torch.dtype
    page_dtype: torch.dtype


SHAPES = (
    Shape("llama8b-bf16", 32, 8, 128, 32, torch.bfloat16, torch.bfloat16),
    Shape("llama8b-bf16-fp8", 32, 8, 128, 32, torch.bfloat16, torch.float8_e4m3fn),
    Shape("smollm-bf16-page64", 9, 3, 64, 64, torch.bfloat16, torch.bfloat16),
    Shape("smollm-fp32", 9, 3, 64, 32, torch.float32, torch.float32),
)
_POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float8_e4m3fn: "*fp8e4nv"}


def builds(hip: bool) -> Iterator[Build]:
    """Every kernel at representative signatures."""
    for shape in SHAPES:
        if hip and shape.page_dtype == torch.float8_e4m3fn:
            continue  # an MI300 has another float8
        yield from _attention_builds(shape, hip)
    yield from _linear_builds(hip)
    yield from _quantized_builds(hip)
    for dtype in (torch.bfloat16, torch.float32):
        yield from _row_builds(_POINTERS[dtype], hip)
        yield from _sampler_builds(_POINTERS[dtype], hip)


def _attention_builds(shape: Shape, hip: bool) -> Iterator[Build]:
    yield from _decode_builds(shape, hip)
    yield from _shared_builds(shape, hip)
    yield from _chunk_builds(shape, hip)
    yield from _rotary_builds(shape, hip)


def _sizes(shape: Shape) -> dict[str, int]:
    heads = {"NUM_HEADS": shape.num_heads, "NUM_KV_HEADS": shape.num_kv_heads, "HEAD_DIM": shape.head_dim}
    return {**heads, "PAGE_SIZE": shape.page_size}


def _paged(shape: Shape) -> tuple[dict[str, str], dict[str, int]]:
    """Types and constants that both kernels over a batch's own pages have."""
    data, held = _POINTERS[shape.dtype], _POINTERS[shape.page_dtype]
    pointers = {"q_ptr": data, "kv_pages_ptr": held, "page_tables_ptr": "*i32", "kv_lens_ptr": "*i32", "out_ptr": data}
    types = {**pointers, "scale": "fp32", "page_table_stride": "i32"}
    return types, {**_sizes(shape), "Q_STRIDE": shape.num_heads * shape.head_dim}


def _decode_builds(shape: Shape, hip: bool) -> Iterator[Build]:
    types, sizes = _paged(shape)
    group = shape.num_heads // shape.num_kv_heads
    group_rows = launch.next_power_of_two(group)
    variants = [("", 8, 0, {}), (" behind a prefix", 1, MAX_SHARED_PARTS, {"shares": True})]
    variants.append((" of few sequences", launch.MAX_SPLITS, 0, {"few": True}))
    if not hip and shape.dtype != torch.float32:
        variants.append((" of many rounds", 1, 0, {"many_rounds": True}))
    for name, splits, shared_slots, kind in variants:
        tiles = launch.decode_tiles(group, shape.dtype, hip, **kind)
        yield Build(
            f"paged_decode[{shape.name}]{name}",
            paged_decode.paged_decode_kernel,
            {**types, "partial_ptr": "*fp32", "log_sum_ptr": "*fp32"}
            | dict.fromkeys(("counters_ptr", "shared_lens_ptr", "shared_parts_ptr"), "*i32"),
            {**sizes, "NUM_SPLITS": splits, "MIN_SPLIT": launch.MIN_SPLIT_TOKENS}
            | {"ROWS": tiles.rows, "TILE": tiles.tokens, "SHARED_SLOTS": shared_slots, "GROUP_ROWS": group_rows}
            | {"AT_ONCE": "shares" in kind or "few" in kind, "NUM_STAGES": tiles.num_stages, "PDL": not hip}
            | {"PARTS": launch.combine_parts(splits + shared_slots, group_rows)},
            tiles.num_warps,
        )


def _shared_builds(shape: Shape, hip: bool) -> Iterator[Build]:
    data, held = _POINTERS[shape.dtype], _POINTERS[shape.page_dtype]
    group_rows = launch.next_power_of_two(shape.num_heads // shape.num_kv_heads)
    tiles = launch.shared_tiles(group_rows, shape.dtype, hip)
    yield Build(
        f"shared_prefix[{shape.name}]",
        shared_prefix.shared_prefix_kernel,
        {"q_ptr": data, "kv_pages_ptr": held}
        | dict.fromkeys(("page_tables_ptr", "members_ptr", "tiles_ptr"), "*i32")
        | {"partial_ptr": "*fp32", "log_sum_ptr": "*fp32", "scale": "fp32", "page_table_stride": "i32"},
        {**_paged(shape)[1], "MEMBERS": SHARED_TILE_ROWS, "GROUP_ROWS": group_rows}
        | {"HEADS": tiles.rows // SHARED_TILE_ROWS, "TILE": tiles.tokens, "NUM_STAGES": tiles.num_stages}
        | {"SLOTS": 1 + MAX_SHARED_PARTS, "FIRST_SLOT": 1, "PDL": not hip},
        tiles.num_warps,
    )


def _chunk_builds(shape: Shape, hip: bool) -> Iterator[Build]:
    types, sizes = _paged(shape)
    for query_len in (64, launch.LONG_CHUNK):
        tiles = launch.chunk_tiles(shape.num_heads // shape.num_kv_heads, query_len, shape.dtype, hip)
        yield Build(
            f"paged_chunk[{shape.name}, {query_len} tokens]",
            paged_chunk.paged_chunk_kernel,
            {**types, "query_starts_ptr": "*i32", "num_decodes": "i32", "num_sequences": "i32"},
            {**sizes, "ROWS": tiles.rows, "TILE": tiles.tokens, "NUM_STAGES": tiles.num_stages},
            tiles.num_warps,
        )


def _rotary_builds(shape: Shape, hip: bool) -> Iterator[Build]:
    data, held = _POINTERS[shape.dtype], _POINTERS[shape.page_dtype]
    yield Build(
        f"rotary_kv_write[{shape.name}]",
        rotary_kv_write.rotary_kv_write_kernel,
        {"qkv_ptr": data, "cos_sin_ptr": "*fp32", "kv_pages_ptr": held, "q_out_ptr": data, "eps": "fp32"}
        | {"positions_ptr": "*i32", "slots_ptr": "*i64", "query_norm_ptr": data, "key_norm_ptr": data},
        {**_sizes(shape), "QKV_STRIDE": (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim}
        | {"NORM": True, "FP8": held == "*fp8e4nv", "TILE": rotary_kv_write.TILE_HEADS, "PDL": not hip},
        4,
    )


def _row_builds(data: str, hip: bool) -> Iterator[Build]:
    size = {"SIZE": 576, "TILE": 1024, "PDL": not hip}
    row = {"x_ptr": data, "weight_ptr": data, "out_ptr": data, "eps": "fp32"}
    yield Build(f"rms_norm[{data}]", rms_norm.rms_norm_kernel, row, {**size, "X_STRIDE": 576}, 4)
    yield Build(
        f"add_rms_norm[{data}]",
        rms_norm.add_rms_norm_kernel,
        {**row, "residual_ptr": data},
        {**size, "X_STRIDE": 576, "RESIDUAL_STRIDE": 576},
        4,
    )
    yield Build(
        f"silu_mul[{data}]",
        silu_mul.silu_mul_kernel,
        {"gate_up_ptr": data, "out_ptr": data},
        {"ROW_STRIDE": 3072, "SIZE": 1536, "TILE": silu_mul.TILE_COLUMNS, "PDL": not hip},
        4,
    )


def _quantized_builds(hip: bool) -> Iterator[Build]:
    """Group 128, 64 and 32, 4 and 8 bits, sizes that divide no tile; fragments where there is the instruction."""
    for num_outputs, num_inputs, rows, subgroups, halves, data in (
        (28672, 4096, 64, 1, 1, "*bf16"),
        (4096, 14336, 16, 4, 1, "*fp16"),
        (576, 1536, 128, 2, 2, "*bf16"),
        (100, 96, 16, 1, 1, "*bf16"),
    ):
        chunks = halves * launch.ceil_div(num_inputs, packed_weight.CHUNK_INPUTS)
        tiles = launch.ceil_div(num_outputs, packed_weight.TILE_OUTPUTS)
        name = f"{num_outputs} x {num_inputs}, {subgroups} subgroups"
        types = dict.fromkeys(("x_ptr", "bias_ptr", "out_ptr"), data) | {"words_ptr": "*i16", "scales_ptr": "*i32"}
        sizes = {"NUM_OUTPUTS": num_outputs, "NUM_INPUTS": num_inputs, "CHUNKS": chunks, "SUBGROUPS": subgroups}
        dtypes = {"BF16": data == "*bf16", "SCALE_BF16": False}
        product = {**sizes, **dtypes, "X_STRIDE": num_inputs, "BIAS": True, "PDL": not hip}
        packed = packed_linear.packed_tiles(rows, tiles, chunks, hopper=not hip)
        yield Build(
            f"packed_linear[{name}]",
            packed_linear.packed_linear_kernel,
            {**types, "num_rows": "i32", "partial_ptr": "*fp32", "counters_ptr": "*i32"},
            {**product, "SPLITS": packed.splits, "ROWS": packed.rows, "OUTPUTS": packed.outputs}
            | {"NUM_STAGES": packed.stages, "ASM": not hip},
            packed.warps,
        )
        yield Build(
            f"unpack_weight[{name}]",
            unpack_weight.unpack_weight_kernel,
            {**types, "first_tile": "i32"},
            {**sizes, **dtypes},
            4,
        )
        if not hip:
            yield from _float8_builds(num_outputs, num_inputs, min(rows, 128))
            fragment = fragment_linear.fragment_tiles(tiles, chunks)
            yield Build(
                f"fragment_linear[{name}]",
                fragment_linear.fragment_linear_kernel,
                {**types, "num_rows": "i32"},
                {**product, "ROW_TILES": fragment.row_tiles, "WARPS": fragment.warps}
                | {"UNROLL": fragment.unroll, "FENCE": fragment.fence},
                fragment.warps,
            )


def _linear_builds(hip: bool) -> Iterator[Build]:
    data = "*bf16"
    for num_outputs, num_inputs, splits, rows in ((1024, 2048, 4, 64), (6144, 1024, 1, 32)):
        yield Build(
            f"skinny_linear[{num_outputs} x {num_inputs}]",
            skinny_linear.skinny_linear_kernel,
            {"x_ptr": data, "weight_ptr": data, "bias_ptr": data, "out_ptr": data, "num_rows": "i32"}
            | {"partial_ptr": "*fp32", "counters_ptr": "*i32"},
            {"X_STRIDE": num_inputs, "NUM_OUTPUTS": num_outputs, "NUM_INPUTS": num_inputs, "SPLITS": splits}
            | {"BIAS": False, "ROWS": rows, "OUTPUTS": skinny_linear.TILE_OUTPUTS}
            | {"INPUTS": skinny_linear.TILE_INPUTS, "NUM_STAGES": 1 if hip else 5, "PDL": not hip},
            4,
        )
    for num_outputs, num_inputs, rows in ((1024, 3072, 64), (4096, 1024, 128)):
        tiles = tiled_linear.linear_tiles(rows, num_outputs, num_inputs)
        if tiles is None:
            raise ValueError(f"no tiles for {rows} rows and a weight of {num_outputs} x {num_inputs}")
        yield Build(
            f"tiled_linear[{num_outputs} x {num_inputs}]",
            tiled_linear.tiled_linear_kernel,
            {"x_desc": f"tensordesc<bf16[{tiled_linear.TILE_ROWS}, {tiled_linear.TILE_INPUTS}]>"}
            | {"weight_desc": f"tensordesc<bf16[{tiles.outputs}, {tiled_linear.TILE_INPUTS}]>"}
            | {"weight_ptr": data, "bias_ptr": data, "out_ptr": data, "num_rows": "i32"}
            | {"partial_ptr": "*fp32", "counters_ptr": "*i32"},
            {"NUM_OUTPUTS": num_outputs, "NUM_INPUTS": num_inputs, "SPLITS": tiles.splits, "BIAS": True}
            | {"ROWS": tiled_linear.TILE_ROWS, "OUTPUTS": tiles.outputs, "INPUTS": tiled_linear.TILE_INPUTS}
            | {"NUM_STAGES": 1 if hip else tiles.stages, "PREFETCH": not hip, "THREADS": 128, "PDL": not hip},
            4,
        )
    yield Build(
        "vector_linear[2048 inputs]",
        skinny_linear.vector_linear_kernel,
        {"x_ptr": data, "weight_ptr": data, "bias_ptr": data, "out_ptr": data},
        {"NUM_INPUTS": 2048, "BIAS": True, "OUTPUTS": skinny_linear.VECTOR_OUTPUTS}
        | {"INPUTS": skinny_linear.VECTOR_INPUTS, "NUM_STAGES": 1 if hip else 3, "PDL": not hip},
        4,
    )


def _float8_builds(num_outputs: int, num_inputs: int, rows: int) -> Iterator[Build]:
    name = f"{num_outputs} x {num_inputs}"
    yield Build(
        f"round_rows[{name}]",
        float8_linear.round_rows_kernel,
        {"x_ptr": "*bf16", "out_ptr": "*fp8e4nv", "scales_ptr": "*fp32", "fixed_scale": "fp32"},
        {"IS_FIXED": False, "X_STRIDE": num_inputs, "SIZE": num_inputs, "BLOCK": 128, "TILE": 1024},
        4,
    )
    for rounded in (True, False):
        yield Build(
            f"block_scaled[{name}, rounded={rounded}]",
            float8_linear.block_scaled_kernel,
            {"x_ptr": "*fp8e4nv" if rounded else "*bf16", "codes_ptr": "*fp8e4nv", "out_ptr": "*bf16"}
            | {"x_scales_ptr": "*fp32", "scales_ptr": "*fp32", "num_rows": "i32"},
            {"NUM_OUTPUTS": num_outputs, "NUM_INPUTS": num_inputs, "IN_BLOCKS": True, "ROUNDED": rounded}
            | {"ROWS": rows, "OUTPUTS": 128 if rounded and rows == 128 else 64, "NUM_STAGES": 3},
            8 if rows == 128 else 4,
        )


def _sampler_builds(data: str, hip: bool) -> Iterator[Build]:
    vocab = {"LOGITS_STRIDE": 49152, "VOCAB": 49152}
    tiles = {"tile_scores_ptr": "*fp32", "tile_ids_ptr": "*i32", "tile_nan_ptr": "*i32"}
    num_tiles = launch.ceil_div(49152, 4 * sampler.TILE_COUNTERS * sampler.TILE_STEPS)
    for greedy, truncate in ((True, False), (False, True)):
        yield Build(
            f"tile_argmax[{data}, greedy={greedy}, truncate={truncate}]",
            sampler.tile_argmax_kernel,
            {"logits_ptr": data, "temperature_ptr": "*fp32", "threshold_ptr": "*fp32", "seeds_ptr": "*i64"}
            | {"token_ids_ptr": "*i32", "output_index_ptr": "*i32", "output_positions_ptr": "*i32", **tiles},
            {**vocab, "NUM_TILES": num_tiles, "TILE": sampler.TILE_COUNTERS, "GREEDY": greedy, "TRUNCATE": truncate}
            | {"STEPS": sampler.TILE_STEPS, "APPROXIMATE": not hip},
            sampler.TILE_WARPS,
        )
    parameters = {"top_k_ptr": "*i32"} | dict.fromkeys(("temperature_ptr", "top_p_ptr", "min_p_ptr"), "*fp32")
    row_words = {"seeds_ptr": "*i64", "output_index_ptr": "*i32", "output_positions_ptr": "*i32"}
    groups = {"peaks_ptr": data, "others_ptr": data}
    sums = {"brackets_ptr": "*fp32", "sums_ptr": "*i64"}
    num_groups = launch.ceil_div(49152, bracket.CHUNK_TOKENS) * bracket.GROUPS
    grouped = {"NUM_GROUPS": num_groups, "GROUP_TOKENS": bracket.GROUP_TOKENS}
    yield Build(
        f"group_peaks[{data}]",
        bracket.group_peaks_kernel,
        {"logits_ptr": data, **parameters, **groups},
        {**vocab, **grouped, "GROUPS": bracket.GROUPS},
        bracket.PEAK_WARPS,
    )
    yield Build(
        f"bracket[{data}]",
        bracket.bracket_kernel,
        {**parameters, **groups, **sums},
        {
            "VOCAB": 49152,
            **grouped,
            "TILE": launch.next_power_of_two(num_groups),
            "NUM_BINS": bracket.NUM_BINS,
            "CAPACITY": candidates.CAPACITY,
        },
        bracket.BRACKET_WARPS,
    )
    packed = {"packed_ptr": "*i64"}
    yield Build(
        f"list[{data}]",
        candidates.list_kernel,
        {"logits_ptr": data, **parameters, **sums, **packed},
        {**vocab, "CAPACITY": candidates.CAPACITY, "CHUNK": candidates.LIST_CHUNK, "TILE": candidates.LIST_TILE}
        | {"APPROXIMATE": not hip},
        candidates.LIST_WARPS,
    )
    yield Build(
        f"truncated_choice[{data}]",
        truncated_choice.truncated_choice_kernel,
        {"logits_ptr": data, **parameters, **row_words, **sums, **packed}
        | {"threshold_ptr": "*fp32", "token_ids_ptr": "*i32", "status_ptr": "*u8"},
        {**vocab, "CAPACITY": candidates.CAPACITY, "TILE": truncated_choice.SEARCH_TILE}
        | {"CHOICE_TILE": truncated_choice.CHOICE_TILE, "UNUSED": 16 if data == "*bf16" else 0}
        | {"APPROXIMATE": not hip},
        truncated_choice.NUM_WARPS,
    )
    if data == "*fp32":
        yield from _choice_builds()
        yield Build(
            "row_argmax",
            sampler.row_argmax_kernel,
            {**tiles, "token_ids_ptr": "*i32", "status_ptr": "*u8"},
            {"NUM_TILES": num_tiles, "TILE": launch.next_power_of_two(num_tiles), "TRUNCATE": True},
            1,
        )


def _choice_builds() -> Iterator[Build]:
    logits = {"logits_ptr": "*fp32", "places_ptr": "*i64"}
    rows = {"token_ids_ptr": "*i32", "statuses_ptr": "*u8", "faults_ptr": "*i32", "packed_ptr": "*i32"}
    words = {"NUM_WORDS": launch.ceil_div(49152, 32), "TILE": choices.TILE_WORDS}
    yield Build("forbid", choices.forbid_kernel, {**logits, "words_ptr": "*i32"}, {"VOCAB": 49152, **words}, 4)
    yield Build("settle", choices.settle_kernel, {**logits, **rows, "num_rows": "i32"}, {"VOCAB": 49152}, 1)
