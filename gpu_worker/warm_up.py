"""Runs steps before the worker says hello, so that no request pays for compilation or first use.

Triton specialises integer arguments on 1 and on divisibility by 16, so the shapes cover 1, multiples of 16 and
neither, for decodes and chunks, with and without sampling. Afterwards the rows are dropped; page content left behind is
never named.
"""

import numpy as np

from gpu_worker.batch_plan import BatchPlan, NewRows, RowOptions, int32s
from gpu_worker.errors import WorkerError
from gpu_worker.model_runner import ModelRunner
from gpu_worker.request_rows import RowLimits

_CPU_SHAPES = ((2, 3),)
_GPU_SHAPES = (
    *((num_rows, 17) for num_rows in (1, 2, 3, 8, 15, 16, 24, 33, 48, 64, 96, 128, 200, 256)),
    *((1, 1), (2, 16), (3, 48), (1, 512), (4, 1000), (1, 2100)),
)
_GPU_LENGTHS = tuple(256 << power for power in range(8))
"""Lengths of a row that decodes: attention is split by them."""
_SAMPLING = ((0.0, 0, 1.0), (1.0, 0, 1.0), (1.0, 20, 0.9))
_FORM = RowOptions(grammar="start: /a/")
"""Of rows that are sampled again."""


def warm_up(runner: ModelRunner) -> None:
    """Raises WorkerError if a warm-up step fails: such a worker could serve nothing."""
    on_cpu = runner.device.type == "cpu"
    for num_rows, num_tokens in _CPU_SHAPES if on_cpu else _GPU_SHAPES:
        for temperature, top_k, top_p in _SAMPLING[::2] if on_cpu else _SAMPLING:
            _run(runner, _plans(runner.limits, num_rows, num_tokens, temperature, top_k, top_p))
    for sampling in () if on_cpu else _SAMPLING:
        _run(runner, _plans(runner.limits, 2, 17, *sampling, options=_FORM))
    for length in () if on_cpu else _GPU_LENGTHS:
        if length <= min(runner.limits.max_model_len, runner.limits.num_pages * runner.limits.page_size):
            _run(runner, [_decode_at(runner.limits, length)])


def _run(runner: ModelRunner, plans: list[BatchPlan]) -> None:
    """Run plans that begin with no rows, and drop their rows."""
    for plan in plans:
        failure = runner.launch(plan).wait().failure
        if failure is not None:
            raise WorkerError(f"a warm-up step failed: {failure}")
    runner.reset()


def _decode_at(limits: RowLimits, length: int) -> BatchPlan:
    """One row that computes its last token over pages of any content."""
    num_pages = -(-length // limits.page_size)
    return BatchPlan(
        new_rows=new_rows(1, length, num_cached=length - 1),
        append_rows=int32s([0] * num_pages),
        append_pages=np.arange(num_pages, dtype=np.int32),
        chunk_rows=int32s([0]),
        chunk_tokens=int32s([1]),
        num_scheduled_rows=1,
        num_scheduled_tokens=1,
    )


def new_rows(
    num_rows: int,
    num_tokens: int,
    *,
    num_cached: int = 0,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    options: RowOptions | None = None,
) -> NewRows:
    """Rows of token 0 alone."""
    ones = np.ones(num_rows, dtype=np.int32)
    return NewRows(
        rows=np.arange(num_rows, dtype=np.int32),
        num_prompt_tokens=ones * num_tokens,
        num_token_ids=ones * num_tokens,
        token_ids=np.zeros(num_rows * num_tokens, dtype=np.int32),
        num_cached_tokens=ones * num_cached,
        output_indices=ones * 0,
        seeds=np.zeros(num_rows, dtype=np.uint64),
        temperatures=np.full(num_rows, temperature, dtype=np.float32),
        top_ps=np.full(num_rows, top_p, dtype=np.float32),
        top_ks=ones * top_k,
        min_ps=np.zeros(num_rows, dtype=np.float32),
        options={} if options is None else dict.fromkeys(range(num_rows), options),
    )


def _plans(
    limits: RowLimits,
    num_rows: int,
    num_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    options: RowOptions | None = None,
) -> list[BatchPlan]:
    """A prompt in two chunks for every row, then a decode of all; cut down to what the limits allow."""
    num_tokens = min(num_tokens, limits.max_model_len - 1, limits.max_num_batched_tokens)
    pages_each = -(-(num_tokens + 1) // limits.page_size)
    num_rows = min(
        num_rows, limits.max_num_seqs, limits.max_num_batched_tokens // num_tokens, limits.num_pages // pages_each
    )
    if num_rows < 1:
        return []
    rows = np.arange(num_rows, dtype=np.int32)
    ones = np.ones(num_rows, dtype=np.int32)
    new = new_rows(num_rows, num_tokens, temperature=temperature, top_k=top_k, top_p=top_p, options=options)
    append_rows = np.repeat(rows, pages_each).astype(np.int32)
    append_pages = np.arange(num_rows * pages_each, dtype=np.int32)
    chunks = [part for part in (num_tokens // 2, num_tokens - num_tokens // 2) if part]
    plans = [
        BatchPlan(
            new_rows=new if number == 0 else NewRows(),
            append_rows=append_rows if number == 0 else int32s(),
            append_pages=append_pages if number == 0 else int32s(),
            chunk_rows=rows,
            chunk_tokens=ones * size,
            num_scheduled_rows=num_rows,
            num_scheduled_tokens=num_rows * size,
        )
        for number, size in enumerate(chunks)
    ]
    decode = BatchPlan(num_scheduled_rows=num_rows, num_scheduled_tokens=num_rows)
    return [*plans, decode]
