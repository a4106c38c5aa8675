"""The worker's settings: precedence, and one line for a wrong value."""

import subprocess
import sys
from pathlib import Path

import pytest

from gpu_worker.config import WorkerConfig, load_config
from gpu_worker.errors import ConfigError

ENDPOINT = "ipc:///tmp/x.sock"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("PAGEWIRE_")]:
        monkeypatch.delenv(name)


def load(*flags: str) -> WorkerConfig:
    return load_config(["some-model", "--scheduler", ENDPOINT, *flags])


def test_defaults() -> None:
    config = load()
    assert (config.model, config.scheduler, config.device, config.page_size) == (
        Path("some-model"),
        ENDPOINT,
        "auto",
        32,
    )
    assert config.max_num_seqs is None


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("page-size: 8\nmax_num_seqs: 9\nmax-model-len: 10\nport: 50051\n")
    monkeypatch.setenv("PAGEWIRE_MAX_NUM_SEQS", "99")
    monkeypatch.setenv("PAGEWIRE_PAGE_SIZE", "88")
    monkeypatch.setenv("PAGEWIRE_PORT", "tcp://10.0.0.1:50051")
    config = load("--config", str(file), "--page-size", "64")
    assert (config.page_size, config.max_num_seqs, config.max_model_len) == (64, 99, 10)
    monkeypatch.setenv("PAGEWIRE_CONFIG", str(file))
    monkeypatch.delenv("PAGEWIRE_PAGE_SIZE")
    assert load().page_size == 8


def test_everything_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEWIRE_MODEL", "~/models/x")
    monkeypatch.setenv("PAGEWIRE_SCHEDULER", ENDPOINT)
    config = load_config([])
    assert config.model == Path.home() / "models/x"


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (("--page-size", "0"), "--page-size 0: must be greater than or equal to 1"),
        (("--page-size", "many"), "--page-size many: must be a valid integer"),
        (("--device", "tpu"), "--device tpu: must be 'auto', 'cpu' or 'cuda'"),
        (("--dtype", "int8"), "--dtype int8: must be 'auto', 'float32', 'bfloat16' or 'float16'"),
        (
            ("--gpu-memory-utilization", "1.5"),
            "--gpu-memory-utilization 1.5: must be less than or equal",
        ),
        (("--gpu-memory-utilization", "nan"), "--gpu-memory-utilization nan: must be"),
        (
            ("--tensor-parallel-size", "0"),
            "--tensor-parallel-size 0: must be greater than or equal to 1",
        ),
        (
            ("--scheduler", "udp://x"),
            "--scheduler udp://x: must be ipc:///PATH or tcp://HOST:PORT",
        ),
        (("--nonsense",), "unrecognized arguments: --nonsense"),
        (("--page", "32"), "unrecognized arguments: --page 32"),
        (("--config", "/nowhere.yaml"), "--config /nowhere.yaml: no such file"),
    ],
)
def test_a_wrong_value_is_one_line(flags: tuple[str, ...], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(*flags)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_needed_is_named() -> None:
    with pytest.raises(ConfigError, match="MODEL is needed"):
        load_config(["--scheduler", ENDPOINT])
    with pytest.raises(ConfigError, match="--scheduler is needed"):
        load_config(["model"])


def test_a_broken_file_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    for content in ("page-size: [", "- a\n- b\n", "\0"):
        file.write_text(content)
        with pytest.raises(ConfigError, match=r"--config .*allowed: a readable YAML file"):
            load("--config", str(file))


def test_a_switch_takes_no_value() -> None:
    given = ["m", "--scheduler", "ipc:///tmp/s"]
    assert load_config([*given, "--enforce-eager"]).enforce_eager
    assert not load_config([*given, "--no-enforce-eager"]).enforce_eager
    assert not load_config(given).enforce_eager


def test_a_worker_told_to_stop_while_it_starts_does_whatever_catches_exceptions() -> None:
    code = "from gpu_worker import __main__\ntry: __main__._leave_at_once(15, None)\nfinally: raise ValueError"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
