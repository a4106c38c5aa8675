"""Steps as CUDA graphs: at every edge of their shapes what the same step gives launched operation by operation, over
poisoned memory, with rows taken over while steps are in flight, and without an allocation on the device."""

from collections import deque
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
from support.gpu_parts import build
from support.plan_driver import Generation, PlanMaker, drive, generate
from support.tiny_models import make_model, random_prompt

from gpu_worker import shared_groups
from gpu_worker.batch_plan import RowOptions, int32s
from gpu_worker.model_runner import ModelRunner
from gpu_worker.step_shape import decode_sizes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MAX_ROWS = 40
ROW_OPTIONS = (
    None,
    RowOptions(repetition_penalty=1.3, frequency_penalty=0.7, presence_penalty=0.4),
    RowOptions(bias_token_ids=int32s([7, 9]), biases=np.array([3.5, -20.0], dtype=np.float32)),
    RowOptions(allowed_token_ids=int32s([3, 5, 8, 13, 21]), bad_words=[(3, 3), (8,)]),
    RowOptions(min_tokens=9, stop_token_ids=int32s(list(range(0, 300, 2)))),
    RowOptions(logprobs=5),
)
EDGES = sorted({size + step for size in decode_sizes(MAX_ROWS) for step in (0, 1) if size + step <= MAX_ROWS})


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("graphs"), num_attention_heads=6, num_key_value_heads=2, head_dim=16).path


@pytest.fixture(scope="module")
def graphs(path: Path) -> ModelRunner:
    runner = build(path, max_num_seqs=MAX_ROWS).runner
    assert len(runner.graphs) > len(EDGES) // 2
    return runner


@pytest.fixture(scope="module")
def eager(path: Path) -> ModelRunner:
    runner = build(path, max_num_seqs=MAX_ROWS, enforce_eager=True).runner
    assert len(runner.graphs) == 0
    return runner


def of_count(count: int, lengths: tuple[int, ...] = (3, 16, 31, 40)) -> list[Generation]:
    """Greedy, drawn and truncated rows side by side."""
    return [
        Generation(
            prompt=random_prompt(lengths[number % len(lengths)], seed=number),
            max_tokens=4 + number % 5,
            temperature=0.9 * (number % 3 > 0),
            top_k=12 * (number % 3 == 2),
            top_p=0.9 if number % 4 == 2 else 1.0,
            seed=number,
        )
        for number in range(count)
    ]


def poison(runner: ModelRunner) -> None:
    torch.cuda.synchronize()
    for layer in runner._kv_pages:
        layer.fill_(float("nan"))


@pytest.mark.parametrize("count", EDGES)
def test_decodes_at_every_edge(graphs: ModelRunner, eager: ModelRunner, count: int) -> None:
    poison(graphs)
    assert generate(graphs, of_count(count), chunk=9) == generate(eager, of_count(count), chunk=9)


@pytest.mark.parametrize("length", [2, 63, 64, 65, 128, 129, 191, 193, 257, 385, 500])
@pytest.mark.parametrize("beside", [0, 1, 16, 17])
def test_chunks_at_every_edge(graphs: ModelRunner, eager: ModelRunner, length: int, beside: int) -> None:
    """A long prompt beside rows that decode already."""
    poison(graphs)
    outputs = [
        generate(runner, [*of_count(beside, (1,)), Generation(prompt=random_prompt(length), max_tokens=5)])
        for runner in (graphs, eager)
    ]
    assert outputs[0] == outputs[1]


def test_padding_writes_no_page(graphs: ModelRunner) -> None:
    poison(graphs)
    generations = of_count(5)
    maker = PlanMaker(num_rows=MAX_ROWS, num_pages=graphs.limits.num_pages, page_size=16)
    maker.submit(*generations)
    graphs.reset()
    named: set[int] = set()
    while (plan := maker.next_plan()) is not None:
        named.update(plan.append_pages.tolist())
        maker.commit(graphs.launch(plan).wait())
    written = (~graphs._kv_pages[0].isnan()).flatten(1).any(1).nonzero().flatten().tolist()
    assert set(written) == named


def test_rows_and_pages_are_taken_over_while_steps_are_in_flight(graphs: ModelRunner, path: Path) -> None:
    """Few rows, so that a row that ended begins anew in the next plan, two plans ahead of the results."""
    small = build(path, max_num_seqs=3).runner
    expected = [generate(small, [generation])[0] for generation in of_count(12)]
    assert generate(small, of_count(12), chunk=20, seed=3) == expected
    assert generate(graphs, of_count(12), chunk=20, seed=3) == expected


def test_a_step_allocates_nothing_on_the_device(graphs: ModelRunner) -> None:
    generations = [Generation(prompt=random_prompt(30, seed=n), max_tokens=40, temperature=0.8) for n in range(11)]
    maker = PlanMaker(num_rows=MAX_ROWS, num_pages=graphs.limits.num_pages, page_size=16, chunk=50)
    maker.submit(*generations)
    graphs.reset()
    launched = deque([graphs.launch(maker.next_plan())])
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    while (plan := maker.next_plan()) is not None:
        launched.append(graphs.launch(plan))
        maker.commit(launched.popleft().wait())
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_rows_that_share_pages_give_the_same(graphs: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """18 rows behind 4 pages of the first one, told as a group once all of them decode; then another row joins them."""
    monkeypatch.setattr(shared_groups, "MIN_SAVED_TOKENS", 1)
    common = random_prompt(64)

    def outputs(*, told: bool) -> list[list[int]]:
        poison(graphs)
        graphs.reset()
        first = Generation(prompt=[*common, 7], max_tokens=20)
        others = [
            Generation(prompt=common + random_prompt(5, seed=n), max_tokens=9, share_with=first) for n in range(17)
        ]
        late = Generation(prompt=random_prompt(70, seed=99), max_tokens=3)
        maker = PlanMaker(num_rows=MAX_ROWS, num_pages=graphs.limits.num_pages, page_size=16, chunk=40)
        maker.submit(first)
        while (plan := maker.next_plan()) is not None:
            if len(first.output) == 2 and not others[0].num_computed:
                maker.submit(*others)
            if len(others[-1].output) == 3 and not late.num_computed:
                maker.submit(late)
            if told and others[-1].output and not len(plan.chunk_rows):
                rows = [each.row for each in (first, *others) if each.row is not None]
                group = {"group_ids": [3], "group_pages": [4], "group_sizes": [len(rows)], "group_rows": rows}
                plan = replace(plan, **{name: int32s(values) for name, values in group.items()})
                told = False
            maker.commit(graphs.launch(plan).wait())
        return [each.output for each in (first, *others, late)]

    assert outputs(told=True) == outputs(told=False)


def test_long_rows_among_many_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention splits the long ones alone, in graphs of their own."""
    long_path = make_model(tmp_path, num_key_value_heads=1, head_dim=32, max_position_embeddings=8192).path
    outputs, shapes = [], []
    for eager in (False, True):
        runner = build(long_path, max_num_seqs=24, max_model_len=4096, enforce_eager=eager).runner
        poison(runner)
        find = runner.graphs.find
        monkeypatch.setattr(runner.graphs, "find", lambda shape, find=find: (shapes.append(shape), find(shape))[1])
        rows = [*of_count(18), Generation(prompt=random_prompt(3000), max_tokens=9)]
        outputs.append(generate(runner, rows, chunk=1500))
    assert outputs[0] == outputs[1]
    assert any(shape.uneven and not shape.num_chunks for shape in shapes)


def test_a_full_batch_with_every_feature(path: Path) -> None:
    """256 rows: greedy, drawn, truncated, with options and log probabilities, sharing a prefix, preempted once."""
    outputs, logprobs = [], []
    for eager in (False, True):
        runner = build(path, max_num_seqs=256, enforce_eager=eager).runner
        poison(runner)
        runner.reset()
        maker = PlanMaker(num_rows=256, num_pages=runner.limits.num_pages, page_size=16, budget=2048, chunk=100)
        first = Generation(prompt=random_prompt(70), max_tokens=30)
        maker.submit(first)
        maker.commit(runner.launch(maker.next_plan()).wait())
        rows = of_count(255)
        for number, row in enumerate(rows):
            row.options = ROW_OPTIONS[number % len(ROW_OPTIONS)]
            if number % 5 == 0:
                row.prompt, row.share_with = [*first.prompt[:64], *row.prompt], first
            row.resume_after = 2 * (number % 11 == 3)
        maker.submit(*rows)
        drive(runner, maker)
        outputs.append([row.output for row in (first, *rows)])
        logprobs.append(maker.logprobs)
    assert outputs[0] == outputs[1]
    assert len(logprobs[0]) == len(logprobs[1]) > 100


def test_krn_03_nothing_is_compiled_for_any_kind_of_first_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_path = make_model(tmp_path, num_key_value_heads=1, head_dim=32, max_position_embeddings=8192).path
    runner = build(long_path, max_num_seqs=MAX_ROWS, max_model_len=4608).runner
    compiled: list[str] = []
    monkeypatch.setattr(
        triton.knobs.runtime, "jit_post_compile_hook", lambda **details: compiled.append(str(details.get("repr")))
    )
    first = Generation(prompt=random_prompt(4000), max_tokens=40)
    generate(runner, [first, Generation(prompt=random_prompt(100), max_tokens=3, share_with=first)], chunk=1500)
    for count in (1, 2, 15, 16, 17):
        generate(runner, of_count(count, (1,)))
        generate(runner, of_count(count, (200, 3)))
    for number, options in enumerate(ROW_OPTIONS):
        for temperature in (0.0, 0.7):
            row = Generation(prompt=random_prompt(30 + number), max_tokens=6, temperature=temperature, options=options)
            generate(runner, [row])
    assert compiled == []
