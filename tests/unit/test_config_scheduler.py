"""Where settings come from, and what is said of wrong ones."""

import subprocess
import sys
from pathlib import Path

import pytest

from scheduler_svc import config, machine
from scheduler_svc.config import ConfigError, SchedulerConfig


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SchedulerConfig.model_fields:
        monkeypatch.delenv(f"PAGEWIRE_{name.upper()}", raising=False)
    monkeypatch.delenv("PAGEWIRE_CONFIG", raising=False)


def test_defaults_are_those_of_the_documents() -> None:
    loaded = config.load([])
    assert (loaded.host, loaded.port, loaded.internal_port, loaded.front_processes) == ("127.0.0.1", 50051, 50052, None)
    assert (loaded.max_num_batched_tokens, loaded.max_num_seqs, loaded.max_model_len) == (8192, 256, None)
    assert (loaded.slow_reader_seconds, loaded.worker_lost_seconds, loaded.drain_seconds) == (30, 5, 30)
    assert loaded.enable_prefix_caching


def test_flag_before_environment_before_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("port: 1001\nmax-num-seqs: 11\nmax_num_batched_tokens: 111\nmodel: of another program\n")
    monkeypatch.setenv("PAGEWIRE_PORT", "1002")
    monkeypatch.setenv("PAGEWIRE_MAX_NUM_SEQS", "12")
    monkeypatch.setenv("PAGEWIRE_SOMETHING_ELSE", "x")
    loaded = config.load(["--port", "1003", "--config", str(file)])
    assert (loaded.port, loaded.max_num_seqs, loaded.max_num_batched_tokens) == (1003, 12, 111)
    monkeypatch.setenv("PAGEWIRE_CONFIG", str(file))
    assert config.load([]).port == 1002


def test_switches_can_be_turned_off_and_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not config.load(["--no-enable-prefix-caching"]).enable_prefix_caching
    monkeypatch.setenv("PAGEWIRE_ENABLE_PREFIX_CACHING", "false")
    assert not config.load([]).enable_prefix_caching
    assert config.load(["--enable-prefix-caching"]).enable_prefix_caching


def test_weights_of_tenants_come_as_pairs_or_as_a_map(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "pagewire.yaml"
    file.write_text("tenant-weights: {a: 2, b: 0.5}\n", encoding="utf-8")
    assert config.load(["--config", str(file)]).tenant_weights == {"a": 2.0, "b": 0.5}
    monkeypatch.setenv("PAGEWIRE_TENANT_WEIGHTS", "a=3")
    assert config.load(["--config", str(file)]).tenant_weights == {"a": 3.0}
    assert config.load(["--tenant-weights", "c=1.5,d=9"]).tenant_weights == {"c": 1.5, "d": 9.0}
    with pytest.raises(config.ConfigError, match=r"^--tenant-weights d=x: must be a valid number$"):
        config.load(["--tenant-weights", "c=1.5,d=x"])


def test_a_public_address_needs_somebody_who_is_asked_for_credentials() -> None:
    for flags in (["--auth-tokens-file", "t"], ["--auth-jwks-file", "j"], ["--allow-unauthenticated"]):
        assert config.load(["--host", "0.0.0.0", *flags]).host == "0.0.0.0"
    certificates = ["--tls-cert", "c", "--tls-key", "k"]
    assert config.load(["--host", "::", *certificates, "--tls-client-ca", "a"]).host == "::"
    with pytest.raises(ConfigError, match="without authentication"):
        config.load(["--host", "0.0.0.0", *certificates])
    with pytest.raises(ConfigError, match="--zmq-curve-dir"):
        config.load(["--worker-endpoint", "tcp://0.0.0.0:5571"])
    assert config.load(["--worker-endpoint", "tcp://0.0.0.0:5571", "--zmq-curve-dir", "d"]).zmq_curve_dir == Path("d")


def test_a_port_set_by_kubernetes_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEWIRE_PORT", "tcp://10.0.0.1:50051")
    assert config.load([]).port == 50051


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "x"], ["--port", "x", "integer"]),
        (["--port", "70000"], ["--port", "70000", "65535"]),
        (["--max-num-seqs", "65537"], ["--max-num-seqs", "65537", "65536"]),
        (["--front-processes", "0"], ["--front-processes", "0", "1"]),
        (["--log-format", "xml"], ["--log-format", "xml", "'text' or 'json'"]),
        (["--host", "0.0.0.0"], ["--host", "0.0.0.0", "--allow-unauthenticated"]),
        (["--host", "example.org"], ["--host", "example.org", "loopback"]),
        (["--worker-endpoint", "tcp://10.0.0.1:5571"], ["--worker-endpoint", "tcp://10.0.0.1:5571", "--zmq-curve-dir"]),
        (["--tls-cert", "c.pem"], ["--tls-cert and --tls-key"]),
        (["--tls-client-ca", "c.pem"], ["--tls-client-ca c.pem", "--tls-cert"]),
        (["--auth-jwt-issuer", "us"], ["--auth-jwks-file"]),
        (["--worker-endpoint", "tcp://*:5571"], ["--worker-endpoint", "tcp://*:5571"]),
        (["--worker-endpoint", "udp://127.0.0.1:5"], ["--worker-endpoint", "ipc://"]),
        (["--worker-endpoint", "ipc://"], ["--worker-endpoint", "ipc://PATH"]),
        (["--worker-endpoint", "ipc://@open"], ["--worker-endpoint", "ipc://PATH"]),
        (["--internal-port", "50051"], ["--internal-port", "--port"]),
        (["--worker-timeout-seconds", "-1"], ["--worker-timeout-seconds", "-1"]),
        (["--prot", "1"], ["--prot"]),
        (["--port"], ["--port"]),
        (["--config", "/nonexistent.yaml"], ["--config", "/nonexistent.yaml"]),
    ],
)
def test_a_wrong_value_is_one_line_that_names_it(arguments: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(arguments)
    line = str(caught.value)
    assert "\n" not in line
    assert [word for word in words if word not in line] == []


def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    for content in ("- a\n- b\n", "a: [", "just text"):
        file = tmp_path / "settings.yaml"
        file.write_text(content)
        with pytest.raises(ConfigError, match="--config"):
            config.load(["--config", str(file)])


def test_a_public_host_may_be_allowed() -> None:
    assert config.load(["--host", "0.0.0.0", "--allow-unauthenticated"]).host == "0.0.0.0"
    assert config.load(["--host", "::1"]).host == "::1"


def test_the_program_ends_with_code_2_and_one_line() -> None:
    command = [sys.executable, "-m", "scheduler_svc", "--port", "banana"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "--port banana" in done.stderr


@pytest.mark.parametrize(
    ("num_cores", "beside_gpu", "fronts"), [(2, True, 1), (7, True, 1), (8, True, 4), (64, True, 4), (64, False, 1)]
)
def test_a_gpu_has_more_fronts_where_there_are_processors_to_spare(
    monkeypatch: pytest.MonkeyPatch, num_cores: int, beside_gpu: bool, fronts: int
) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: num_cores)
    monkeypatch.setattr(machine, "has_gpu", lambda: beside_gpu)
    assert machine.default_fronts() == fronts


def test_a_gpu_is_what_the_kernel_shows(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    assert not machine.has_gpu(tmp_path)
    (tmp_path / "nvidia1").touch()
    assert machine.has_gpu(tmp_path)
