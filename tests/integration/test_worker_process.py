"""The worker as a process, driven over the real protocol: serving, signals, and what it says when it cannot start."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.conditions import wait_until
from support.plan_driver import Generation
from support.tiny_models import EOS_ID, VOCAB_SIZE, TinyModel, greedy, make_model, random_prompt
from support.worker_wire import WireScheduler

EXIT_SECONDS = 60


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_model(tmp_path_factory.mktemp("tiny"), num_key_value_heads=2)


def command(model: Path, endpoint: str, *flags: str) -> list[str]:
    base = [sys.executable, "-m", "gpu_worker", str(model), "--scheduler", endpoint, "--device", "cpu"]
    return [*base, "--cpu-threads", "1", "--dtype", "float32", "--kernels", "reference", *flags]


def start(model: Path, endpoint: str, *flags: str, **options: object) -> "subprocess.Popen[str]":
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PAGEWIRE_")}
    return subprocess.Popen(
        command(model, endpoint, *flags), stderr=subprocess.PIPE, text=True, env=environment, **options
    )


def finish(process: "subprocess.Popen[str]") -> tuple[int, str]:
    try:
        _, errors = process.communicate(timeout=EXIT_SECONDS)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    return process.returncode, errors


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[WireScheduler]:
    with WireScheduler(tmp_path) as wire:
        yield wire


def test_a_worker_serves_survives_a_stop_and_leaves_on_sigterm(tiny: TinyModel, scheduler: WireScheduler) -> None:
    process = start(tiny.path, scheduler.endpoint, "--page-size", "16", "--max-num-seqs", "4", "--max-model-len", "128")
    try:
        hello = scheduler.join()
        assert (hello.page_size, hello.max_num_seqs, hello.max_model_len, hello.num_ranks) == (16, 4, 128, 1)
        assert (hello.protocol_version, hello.pid, hello.num_pages) == (1, process.pid, 4 * 8)
        card = hello.model_card
        assert (card.name, card.architecture, card.dtype) == (tiny.path.name, "LlamaForCausalLM", "float32")
        assert (card.vocab_size, list(card.eos_token_ids), card.max_model_len) == (VOCAB_SIZE, [EOS_ID], 128)
        assert card.generation_defaults.temperature == 0.75
        maker = scheduler.maker(chunk=7)
        generations = [Generation(prompt=random_prompt(length), max_tokens=9) for length in (1, 16, 17, 40, 64)]
        maker.submit(*generations)
        scheduler.run(maker)
        for generation in generations:
            assert generation.output == greedy(tiny.reference, generation.prompt, 9)
        process.send_signal(signal.SIGTERM)
        goodbye = scheduler.await_frame(lambda frame: frame.WhichOneof("body") == "goodbye")
        assert goodbye.epoch == scheduler.epoch
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        code, errors = finish(process)
    assert code == 0, errors
    assert "tokens that fit  512" in errors
    assert "Traceback" not in errors


def test_sigterm_while_loading_ends_it_cleanly(tiny: TinyModel, tmp_path: Path) -> None:
    process = start(tiny.path, f"ipc://{tmp_path}/none.sock")
    command = Path(f"/proc/{process.pid}/cmdline")
    wait_until(lambda: "gpu_worker" in command.read_text(), "the program runs")
    process.send_signal(signal.SIGTERM)
    code, errors = finish(process)
    assert code in (0, -signal.SIGTERM), errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("model", "flags", "expected"),
    [
        ("nowhere", (), "nowhere: no such file or directory"),
        ("", ("--page-size", "0"), "--page-size 0: must be greater than or equal to 1"),
        (
            "",
            ("--kv-cache-memory-bytes", "1000"),
            "the page pool is too small: one request of max_model_len 2048 needs",
        ),
    ],
)
def test_what_cannot_start_says_one_line_and_exits_2(
    tiny: TinyModel, tmp_path: Path, model: str, flags: tuple[str, ...], expected: str
) -> None:
    process = start(tmp_path / model if model else tiny.path, f"ipc://{tmp_path}/none.sock", *flags)
    code, errors = finish(process)
    assert code == 2
    assert expected in errors
    assert len(errors.strip().splitlines()) == 1
