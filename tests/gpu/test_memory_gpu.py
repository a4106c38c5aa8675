"""Memory of a worker on a GPU: pools beside other processes and beyond 2**31 elements, pages in float8, what graphs
take, and a step that runs out of memory."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pagewire_kernels import AttentionBatch
from pagewire_kernels.triton import TritonKernels
from support.gpu_parts import build
from support.plan_driver import Generation, PlanMaker, drive, generate
from support.tiny_models import make_model, random_prompt

from gpu_worker.batch_plan import BatchPlan
from gpu_worker.errors import PagePoolTooSmallError
from gpu_worker.graph_memory import expected_graph_bytes
from gpu_worker.model_runner import ModelRunner
from gpu_worker.page_pool import PageShape, allocate_pages

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
HOLD = """
import sys, torch
held = torch.empty(int(sys.argv[1]), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("memory"), num_attention_heads=6, num_key_value_heads=2, head_dim=16).path


def of_lengths(*lengths: int, **options: Any) -> list[Generation]:
    return [Generation(prompt=random_prompt(length), max_tokens=12, **options) for length in lengths]


def pool_bytes(runner: ModelRunner) -> int:
    return sum(layer.nbytes for layer in runner._kv_pages)


def test_mem_01_the_share_is_of_the_whole_gpu_for_this_process(path: Path) -> None:
    """Beside a process that holds 30 %: a pool is the share it was given, or what is left, and never nothing."""
    total = torch.cuda.mem_get_info()[1]
    command = [sys.executable, "-c", HOLD, str(int(0.3 * total))]
    options = {"kv_cache_memory_bytes": None, "max_num_batched_tokens": 512, "max_num_seqs": 560_000}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        for share in (0.05, 0.5, 0.9, 1.0):
            torch.cuda.empty_cache()
            free = torch.cuda.mem_get_info()[0]
            parts = build(path, gpu_memory_utilization=share, enforce_eager=True, **options)
            given = min(share * total, free)
            assert given - (1 << 30) - 0.05 * given < pool_bytes(parts.runner) < given
            assert f"{parts.runner.limits.num_pages:,} of" in parts.summary
            del parts
        with pytest.raises(PagePoolTooSmallError, match=r"needs \d+ pages = [\d,]+ bytes, available are [\d,]+ ="):
            build(path, gpu_memory_utilization=0.0001, enforce_eager=True, **options)
        other.communicate()


@pytest.mark.parametrize("part", ["forward", "sample"])
def test_mem_03_running_out_of_memory_leaves_nothing_behind(
    path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = build(path, enforce_eager=True).runner
    expected = generate(runner, of_lengths(33))

    def fail(*arguments: object) -> torch.Tensor:
        held = [torch.empty(1 << 20, device="cuda") for _ in range(50)]
        return torch.empty(1 << 50, device="cuda").add_(held[0])

    for number in range(6):
        runner.reset()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        maker = PlanMaker(num_rows=8, num_pages=runner.limits.num_pages, page_size=16, seed=number)
        maker.submit(*of_lengths(*range(17, 17 + number + 1)))
        plan = maker.next_plan()
        assert plan is not None
        with monkeypatch.context() as patch:
            patch.setattr(*((runner.model, "forward") if part == "forward" else (runner._kernels, "sample")), fail)
            output = runner.launch(plan)
        assert "OutOfMemoryError" in str(output.wait().failure)
        assert torch.cuda.memory_allocated() <= before * 1.01
        assert runner.launch(BatchPlan(releases=plan.new_rows.rows.copy())).wait().failure is None
    assert generate(runner, of_lengths(33)) == expected


def test_krn_01_a_pool_past_31_bits_gives_what_its_first_pages_give(tmp_path: Path) -> None:
    """A page has 32,768 elements: 2**31 lie before page 65,536. Pages of both ends are handed out."""
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128}
    make_model(tmp_path, max_position_embeddings=8192, **sizes)
    options = {"enforce_eager": True, "max_model_len": 4096, "max_num_seqs": 280, "max_num_batched_tokens": 512}
    runner = build(tmp_path, dtype="bfloat16", kv_cache_memory_bytes=70_000 << 16, **options).runner
    num_pages = runner.limits.num_pages
    assert num_pages * runner._kv_pages[0][0].numel() > 1 << 31
    outputs = []
    for pages in (range(500), range(65_300, 65_800), range(num_pages - 500, num_pages)):
        runner.reset()
        maker = PlanMaker(num_rows=8, num_pages=num_pages, page_size=16, chunk=300, budget=512)
        maker._free_pages = list(pages)
        generations = of_lengths(40, 17, 500, 1, 1000, temperature=0.8)
        maker.submit(*generations)
        drive(runner, maker)
        outputs.append([generation.output for generation in generations])
    assert outputs[0] == outputs[1] == outputs[2]


def test_graphs_take_what_was_expected(path: Path) -> None:
    """Of the second worker in this process: what CUDA loads once is not in the trial of the first one's graphs."""
    runner = build(path, max_num_seqs=64).runner
    page = PageShape.of(runner.model.config, 16, torch.float32)
    before = torch.cuda.memory_reserved()
    expected = expected_graph_bytes(runner.model, TritonKernels(), page, runner.limits)
    assert torch.cuda.memory_reserved() <= before
    taken = build(path, max_num_seqs=64).runner.graphs.num_bytes
    assert taken <= expected < 3 * taken + (256 << 20)


def test_fp8_pages_hold_twice_as_much_and_graphs_give_the_same(path: Path) -> None:
    options = {"dtype": "bfloat16", "kv_cache_memory_bytes": 2 << 20, "max_num_seqs": 64}
    plain = build(path, enforce_eager=True, **options).runner
    runners = [build(path, kv_cache_dtype="fp8", enforce_eager=eager, **options).runner for eager in (False, True)]
    assert runners[0].limits.num_pages == 2 * plain.limits.num_pages
    generations = [*of_lengths(3, 40, 300), *of_lengths(17, 18, temperature=0.9)]
    outputs = []
    for runner in runners:
        rows = [Generation(prompt=each.prompt, max_tokens=12, temperature=each.temperature) for each in generations]
        outputs.append(generate(runner, rows, chunk=100))
    assert outputs[0] == outputs[1]


def test_fp8_pages_change_log_probabilities_little(path: Path) -> None:
    runner = build(path, dtype="bfloat16", enforce_eager=True).runner
    length = 300
    arange = torch.arange(length, device="cuda")
    batch = AttentionBatch(
        page_tables=torch.arange(19, dtype=torch.int32, device="cuda")[None],
        query_starts=torch.tensor([0, length], dtype=torch.int32, device="cuda"),
        kv_lens=torch.tensor([length], dtype=torch.int32, device="cuda"),
        positions=arange.int(),
        slots=arange,
        num_decodes=0,
        max_query_len=length,
        max_kv_len=length,
    )
    token_ids = torch.tensor(random_prompt(length), dtype=torch.int32, device="cuda")
    found = []
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        page = PageShape.of(runner.model.config, 16, dtype)
        with torch.inference_mode():
            logits = runner.model.forward(token_ids, batch, allocate_pages(19, page, torch.device("cuda")), arange)
        found.append(logits.float().log_softmax(-1))
    divergence = (found[0].exp() * (found[0] - found[1])).sum(-1)
    assert 0 < float(divergence.mean()) < 0.2  # of random weights
