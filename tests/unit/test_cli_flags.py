"""Flags of the services are told apart and sent to the right role; the few the launcher needs are resolved."""

from pathlib import Path

import grpc
import pytest
from pagewire_client.cli.access import in_front
from pagewire_client.cli.failures import UsageError, error_line, exit_code
from pagewire_client.cli.flags import FLAGS, Role, flags_of, parse
from pagewire_client.cli.settings import serve_settings
from pagewire_client.errors import (
    FetchError,
    FieldViolation,
    ServerError,
    StackError,
    StatusDetails,
    server_error,
)

from gpu_worker.config import WorkerConfig
from scheduler_svc.config import SchedulerConfig

SERVE = flags_of(*Role)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PORT", "HOST", "CONFIG", "MODEL", "STATE_DIR", "INTERNAL_PORT", "WORKER_ENDPOINT", "NUM_WORKERS"):
        monkeypatch.delenv(f"PAGEWIRE_{name}", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def test_each_role_gets_its_flags() -> None:
    words = ["model.gguf", "--port", "1", "--dtype=float32", "--max-num-seqs", "8", "--no-enable-prefix-caching"]
    parsed = parse(words, SERVE, takes_model=True)
    assert parsed.model == "model.gguf"
    assert parsed.words_for(Role.SCHEDULER) == ["--port=1", "--max-num-seqs=8", "--no-enable-prefix-caching"]
    assert parsed.words_for(Role.WORKER) == ["--dtype=float32", "--max-num-seqs=8"]
    assert "--port=1" not in parsed.words_for(Role.SCHEDULER, leave_out=["port"])


def test_a_switch_takes_no_value_but_may_have_one() -> None:
    parsed = parse(["--enable-prefix-caching", "m", "--allow-unauthenticated=false"], SERVE, takes_model=True)
    assert parsed.model == "m"
    assert parsed.words_for(Role.SCHEDULER) == ["--enable-prefix-caching", "--no-allow-unauthenticated"]


def test_a_value_may_look_like_a_flag() -> None:
    parsed = parse(["--cpu-threads", "-1"], SERVE, takes_model=True)
    assert parsed.words_for(Role.WORKER) == ["--cpu-threads=-1"]


def test_the_table_is_what_the_services_take() -> None:
    for role, settings in ((Role.SCHEDULER, SchedulerConfig), (Role.WORKER, WorkerConfig)):
        names = {name.replace("_", "-") for name in settings.model_fields} - {"model"}
        assert set(flags_of(role)) == names | {"config"}
        switches = {name.replace("_", "-") for name, f in settings.model_fields.items() if f.annotation is bool}
        assert {name for name, flag in flags_of(role).items() if flag.is_switch} == switches


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--prot", "1"], "unknown flag --prot; did you mean '--port'"),
        (["-p", "1"], "unknown flag -p"),
        (["--no-port"], "unknown flag --no-port"),
        (["--port"], "--port needs a value"),
        (["a", "b"], "unexpected argument 'b'"),
        (["--xyzzy=1"], "unknown flag --xyzzy"),
        (["--enable-prefix-caching=maybe"], "--enable-prefix-caching maybe: must be true or false"),
        (["--no-enable-prefix-caching=1"], "--no-enable-prefix-caching takes no value"),
        (["--block-size", "16"], "unknown flag --block-size; here it is --page-size"),
        (["--model", "m"], "unknown flag --model; the model is an argument without a flag"),
        (["--trust-remote-code"], "unknown flag --trust-remote-code; code from a model directory is never executed"),
    ],
)
def test_what_is_wrong_is_named(words: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(words, SERVE, takes_model=True)
    assert str(caught.value).startswith(said)


def test_a_scheduler_takes_no_model_and_no_worker_flags() -> None:
    with pytest.raises(UsageError, match="unexpected argument"):
        parse(["model"], flags_of(Role.SCHEDULER), takes_model=False)
    with pytest.raises(UsageError, match="unknown flag --dtype"):
        parse(["--dtype", "auto"], flags_of(Role.SCHEDULER), takes_model=False)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("generate hi --token-file t --n 2", "--token-file t generate hi --n 2"),
        ("--tls generate hi --tenant=a --tls-ca c", "--tls --tenant=a --tls-ca c generate hi"),
        ("--tenant generate generate hi", "--tenant generate generate hi"),
        ("generate --tls -- --tenant", "--tls generate -- --tenant"),
        ("generate hi --token-file", "--token-file generate hi"),
        ("serve generate --tls-cert c", "serve generate --tls-cert c"),
        ("--version", "--version"),
        ("", ""),
    ],
)
def test_what_a_caller_shows_may_be_said_before_the_command_or_behind_it(words: str, expected: str) -> None:
    assert in_front(words.split(), {"generate"}) == expected.split()


def test_names_are_unique() -> None:
    assert len({flag.name for flag in FLAGS}) == len(FLAGS)


def test_defaults_meet_in_the_state_directory(tmp_path: Path) -> None:
    settings = serve_settings(parse([], SERVE, takes_model=True))
    assert settings.client_target == "127.0.0.1:50051"
    assert settings.worker_endpoint == f"ipc://{tmp_path}/pagewire/worker-50051.sock"
    assert settings.model is None


def test_flag_before_environment_before_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("port: 1001\ninternal-port: 1002\nnum_workers: 3\nmodel: from-file\n")
    monkeypatch.setenv("PAGEWIRE_CONFIG", str(config))
    monkeypatch.setenv("PAGEWIRE_INTERNAL_PORT", "2002")
    settings = serve_settings(parse(["--port", "3001"], SERVE, takes_model=True))
    assert (settings.port, settings.internal_port, settings.num_workers) == (3001, 2002, 3)
    assert settings.model == "from-file"


def test_requests_wait_for_a_restarted_worker_unless_told_otherwise() -> None:
    assert serve_settings(parse([], SERVE, takes_model=True)).patience == ("--worker-lost-seconds", "60")
    assert serve_settings(parse(["--worker-lost-seconds", "1"], SERVE, takes_model=True)).patience == ()


def test_a_port_injected_by_kubernetes_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEWIRE_PORT", "tcp://10.0.0.1:50051")
    assert serve_settings(parse([], SERVE, takes_model=True)).port == 50051


@pytest.mark.parametrize("value", ["0", "65536", "x", "-1", "²"])
def test_a_wrong_port_names_flag_value_and_range(value: str) -> None:
    with pytest.raises(UsageError, match=f"--port {value}: must be an integer from 1 to 65535"):
        serve_settings(parse(["--port", value], SERVE, takes_model=True))


@pytest.mark.parametrize("value", ["x", "-1", "nan", "86401"])
def test_wrong_seconds_name_flag_value_and_range(value: str) -> None:
    with pytest.raises(UsageError, match=f"--drain-seconds {value}: must be a number from 0 to 86400"):
        serve_settings(parse([f"--drain-seconds={value}"], SERVE, takes_model=True))


@pytest.mark.parametrize(
    ("host", "target"), [("0.0.0.0", "127.0.0.1:50051"), ("::", "[::1]:50051"), ("::1", "[::1]:50051")]
)
def test_any_address_is_reached_by_loopback(host: str, target: str) -> None:
    assert serve_settings(parse(["--host", host], SERVE, takes_model=True)).client_target == target


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "\x00"])
def test_a_bad_file_is_named(tmp_path: Path, text: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(text)
    with pytest.raises(UsageError, match="--config"):
        serve_settings(parse(["--config", str(config)], SERVE, takes_model=True))
    with pytest.raises(UsageError, match="cannot be read"):
        serve_settings(parse(["--config", str(tmp_path / "none")], SERVE, takes_model=True))


def test_a_name_that_would_do_nothing_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("max-num-seq: 3\n")
    with pytest.raises(UsageError, match=r"unknown setting 'max_num_seq'; did you mean 'max_num_seqs'\?"):
        serve_settings(parse(["--config", str(config)], SERVE, takes_model=True))


@pytest.mark.parametrize("value", ["foo", "tcp://127.0.0.1", "ipc://", "tcp://host:x"])
def test_an_endpoint_is_called_by_the_flag_that_gave_it(value: str) -> None:
    with pytest.raises(UsageError, match=rf"--worker-endpoint {value}: must be ipc://PATH or tcp://ADDRESS:PORT"):
        serve_settings(parse(["--worker-endpoint", value], SERVE, takes_model=True))
    beyond = ["--worker-endpoint", "tcp://0.0.0.0:5571"]
    with pytest.raises(UsageError, match=r"--worker-endpoint tcp://0.0.0.0:5571: .* needs --zmq-curve-dir"):
        serve_settings(parse(beyond, SERVE, takes_model=True))
    assert (
        serve_settings(parse([*beyond, "--zmq-curve-dir", "d"], SERVE, takes_model=True)).worker_endpoint == beyond[1]
    )


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (server_error(grpc.StatusCode.UNAVAILABLE, "gone"), "`pagewire serve` starts one"),
        (server_error(grpc.StatusCode.UNAVAILABLE, "WRONG_VERSION_NUMBER"), "speaks no TLS"),
        (server_error(grpc.StatusCode.UNAVAILABLE, "Socket closed"), "may want TLS, --tls-ca FILE"),
        (server_error(grpc.StatusCode.UNIMPLEMENTED, "Method not found!"), "on the internal port"),
        (server_error(grpc.StatusCode.UNAUTHENTICATED, "no", StatusDetails(reason="NO_CREDENTIALS")), "--token-file"),
        (server_error(grpc.StatusCode.UNIMPLEMENTED, "no", StatusDetails(reason="NOT_SUPPORTED")), None),
        (server_error(grpc.StatusCode.INTERNAL, "no"), None),
    ],
)
def test_an_error_says_what_to_do_where_that_is_plain(error: ServerError, advice: str | None) -> None:
    line = error_line(error)
    assert line.startswith(f"error: {error}")
    assert (advice in line) if advice else line == f"error: {error}"


def test_all_wrong_fields_are_told_once() -> None:
    violations = (FieldViolation(field="a", description="is odd"), FieldViolation(field="b", description="is odd"))
    details = StatusDetails(field_violations=violations)
    error = server_error(grpc.StatusCode.INVALID_ARGUMENT, "a: is odd (and 1 more)", details)
    assert str(error) == "INVALID_ARGUMENT: a: is odd; b: is odd"


def test_exit_codes() -> None:
    assert exit_code(UsageError("x")) == 2
    assert exit_code(StackError("x", exit_code=2)) == 2
    assert exit_code(StackError("x", exit_code=-9)) == 1
    assert exit_code(FetchError("x")) == 2


def test_serve_looks_at_its_own_server_through_the_internal_port() -> None:
    settings = serve_settings(parse(["--tls-cert", "c", "--tls-key", "k"], SERVE, takes_model=True))
    assert settings.local_target == "127.0.0.1:50052"
    assert serve_settings(parse(["--internal-port", "0"], SERVE, takes_model=True)).local_target == "127.0.0.1:50051"
    guarded = ["--internal-port", "0", "--auth-tokens-file", "t"]
    with pytest.raises(UsageError, match=r"--internal-port 0: with --auth-tokens-file"):
        serve_settings(parse(guarded, SERVE, takes_model=True))
