"""Sizing of the page pool, the choice of dtype, and where memory is counted."""

import sys
from pathlib import Path

import pytest
import torch

from gpu_worker import cpu_threads, memory
from gpu_worker.cpu_threads import set_cpu_threads
from gpu_worker.device import has_fast_bf16, load_kernel_set, pick_device, pick_dtype
from gpu_worker.errors import ConfigError, PagePoolTooSmallError
from gpu_worker.page_pool import PageShape, allocate_pages, copy_pages, count_pages

SHAPE = PageShape(num_layers=3, num_kv_heads=2, page_size=16, head_dim=64, dtype=torch.float32)
CPU = torch.device("cpu")


def test_a_page_counts_keys_and_values_of_all_layers() -> None:
    assert SHAPE.num_bytes == 2 * 3 * 2 * 16 * 64 * 4
    pages = allocate_pages(5, SHAPE, CPU)
    assert sum(layer.nbytes for layer in pages) == 5 * SHAPE.num_bytes
    assert [tuple(layer.shape) for layer in pages] == [(5, 2, 2, 16, 64)] * 3


def test_the_pool_takes_what_fits_but_not_more_than_can_be_used() -> None:
    assert count_pages(10 * SHAPE.num_bytes + 1, SHAPE, max_model_len=100, max_num_seqs=8) == 10
    assert count_pages(1 << 40, SHAPE, max_model_len=100, max_num_seqs=8) == 7 * 8


@pytest.mark.parametrize("available", [-5, 0, 6 * SHAPE.num_bytes])
def test_too_small_is_an_error_with_numbers(available: int) -> None:
    with pytest.raises(PagePoolTooSmallError, match=r"needs 7 pages = [\d,]+ bytes, available are [\d,]+ = [06] pages"):
        count_pages(available, SHAPE, max_model_len=100, max_num_seqs=8)


def test_more_than_there_is_is_an_error_with_numbers() -> None:
    with pytest.raises(PagePoolTooSmallError, match=r"cannot be allocated: \d+ pages = \d+ MiB; lower --kv-cache"):
        allocate_pages((1 << 60) // SHAPE.num_bytes, SHAPE, CPU)


def test_copies_touch_nothing_else() -> None:
    pages = allocate_pages(6, SHAPE, CPU)
    for layer in pages:
        layer.copy_(torch.randn_like(layer))
    before = [layer.clone() for layer in pages]
    copy_pages(pages, torch.tensor([1, 4]), torch.tensor([0, 5]))
    for layer, old in zip(pages, before, strict=True):
        assert torch.equal(layer[[0, 5]], old[[1, 4]])
        assert torch.equal(layer[1:5], old[1:5])


def test_available_memory_respects_a_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = memory.available_memory()
    assert 0 < memory.cpu_pool_bytes() <= machine
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("300000\n")
    monkeypatch.setattr(memory, "_CGROUP_V2", tmp_path)
    assert memory.available_memory() == 700000
    assert memory.cpu_pool_bytes() == 175000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available_memory() > 700000


def test_auto_dtype_follows_the_cpu(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags\t\t: avx2 avx512_bf16\nflags\t\t: avx512_bf16\n")
    assert has_fast_bf16(cpuinfo)
    cpuinfo.write_text("flags\t\t: avx2 avx512_bf16\nflags\t\t: avx2\n")
    assert not has_fast_bf16(cpuinfo)
    assert not has_fast_bf16(tmp_path / "none")
    assert pick_dtype("float32", "bfloat16", CPU) is torch.float32
    assert pick_dtype("auto", "float16", torch.device("cuda")) is torch.float16
    assert pick_dtype("auto", "float32", torch.device("cuda")) is torch.bfloat16


def test_a_device_that_is_not_there_is_named() -> None:
    assert pick_device("cpu") == CPU
    if not torch.cuda.is_available():
        assert pick_device("auto") == CPU
        with pytest.raises(ConfigError, match="--device cuda: no CUDA device"):
            pick_device("cuda")


def test_threads_are_measured_unless_given() -> None:
    before = torch.get_num_threads()
    try:
        assert set_cpu_threads(1, 64, 64, torch.float32) == 1
        assert set_cpu_threads(0, 64, 64, torch.float32) >= 1
    finally:
        torch.set_num_threads(before)


def test_a_neighbour_that_is_soon_gone_costs_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([1, 4, 2])
    monkeypatch.setattr(cpu_threads.os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(cpu_threads, "_SECONDS_BETWEEN_LOOKS", 0)
    monkeypatch.setattr(cpu_threads, "_best_threads", lambda *_: next(looks))
    before = torch.get_num_threads()
    try:
        assert set_cpu_threads(0, 64, 64, torch.float32) == 4
    finally:
        torch.set_num_threads(before)
    assert list(looks) == [2]  # all CPUs were worth using: no need to look again


def test_kernels_that_need_a_package_which_is_not_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pagewire_kernels.triton", None)
    with pytest.raises(ConfigError, match=r"^--kernels triton: needs pagewire_kernels.triton, which is not installed"):
        load_kernel_set("triton")
