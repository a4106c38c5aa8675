"""The scheduler's settings: flag, else PAGEWIRE_* environment, else YAML file, else default.

The only module that reads the environment, but for compiled.py, whose choice comes before any settings. A wrong value
is one line that names the flag, the value and what is allowed. Keys of other programs in the file and unknown
PAGEWIRE_* variables are ignored: both are shared with workers.
"""

import argparse
import importlib.util
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import structlog
import yaml
from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(ge=0, le=86400)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Rows = Annotated[int, Field(ge=1, le=65_536)]
Weight = Annotated[float, Field(gt=0, le=1e6)]
CountOrZero = Annotated[int, Field(ge=0, le=2**31 - 1)]


class ConfigError(Exception):
    """The settings are wrong; the message is one line for the operator."""


class SchedulerConfig(BaseSettings):
    """All settings of ``python -m scheduler_svc``; descriptions are the help texts."""

    model_config = SettingsConfigDict(env_prefix="PAGEWIRE_", extra="ignore", frozen=True, env_ignore_empty=True)

    host: str = Field("127.0.0.1", min_length=1, description="address of the public port")
    port: Port = Field(50051, description="public gRPC port")
    internal_port: Annotated[int, Field(ge=0, le=65535)] = Field(50052, description="loopback port; 0: none")
    health_port: Annotated[int, Field(ge=0, le=65535)] = Field(0, description="health alone, on any interface; 0: none")
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = Field(9464, description="Prometheus metrics; 0: none")
    metrics_host: str = Field("127.0.0.1", min_length=1, description="address of the metrics port")
    front_processes: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None, description="front processes; if not given, 4 beside a GPU on 8 usable cores or more, else 1"
    )
    worker_endpoint: str = Field("", description="where workers connect: ipc://PATH or tcp://ADDRESS:PORT")
    zmq_curve_dir: Path | None = Field(None, description="keys of the worker endpoint, made if not there")
    max_num_batched_tokens: Count = Field(8192, description="most tokens a step; a worker may have less")
    max_num_seqs: Rows = Field(256, description="most requests running on a worker; a worker may have less")
    max_model_len: Count | None = Field(None, description="most tokens of a request; the model's if not given")
    enable_prefix_caching: bool = Field(True, description="reuse pages of common prefixes")
    long_prefill_token_threshold: CountOrZero = Field(0, description="most tokens of one prompt in a step; 0: no limit")
    target_inter_token_ms: CountOrZero | None = Field(
        None,
        description="how long a step may keep running streams waiting; prompts get what it leaves; 0: no limit; "
        "if not given, 50 for workers on a GPU and no limit for others",
    )
    max_queued_requests: CountOrZero = Field(16_384, description="most outputs waiting; 0: no limit")
    max_queued_tokens: CountOrZero = Field(2**26, description="most tokens of all that wait; 0: no limit")
    page_watermark: Annotated[float, Field(ge=0, le=0.5)] = Field(
        0.01, description="share of a worker's pages left to running requests when another begins"
    )
    pin_share: Annotated[float, Field(ge=0, le=0.9)] = Field(
        0.25, description="share of a worker's pages that pins may keep; half of it those of one tenant"
    )
    scheduling_policy: Literal["fcfs", "priority", "sjf"] = Field(
        "priority", description="order of a tenant's requests: first come, priority and deadline, or shortest job first"
    )
    aging_seconds: Seconds = Field(300, description="longest time that a deadline or a length holds a request back")
    tenant_fairness: bool = Field(True, description="share the workers among tenants by what they were served")
    tenant_weights: Annotated[dict[str, Weight], NoDecode] = Field(
        {}, description="shares of tenants that differ from 1: NAME=WEIGHT,NAME=WEIGHT"
    )
    slow_reader_seconds: Seconds = Field(30, description="patience with a caller that does not read")
    max_connection_age_seconds: Seconds = Field(
        0, description="about how long a connection lives before its client is told to open another; 0: no limit"
    )
    max_connection_age_grace_seconds: Seconds = Field(
        0, description="time that calls on such a connection have left; 0: all they need"
    )
    worker_lost_seconds: Seconds = Field(5, description="how long requests wait when there is no worker any more")
    worker_timeout_seconds: Annotated[float, Field(ge=0.5, le=3600)] = Field(
        3, description="silence after which a worker is given up"
    )
    drain_seconds: Seconds = Field(30, description="time running requests get when the server stops")
    drain_notice_seconds: Seconds = Field(
        0, description="time before that in which health says so, to be balanced away"
    )
    allow_unauthenticated: bool = Field(False, description="allow a public address without authentication")
    tls_cert: Path | None = Field(None, description="PEM certificates of the public port")
    tls_key: Path | None = Field(None, description="PEM private key of the public port")
    tls_client_ca: Path | None = Field(None, description="PEM certificates; clients must show one signed by them")
    auth_tokens_file: Path | None = Field(None, description="tokens, certificates and tenants, see docs/security.md")
    auth_jwks_file: Path | None = Field(None, description="public keys of JSON Web Tokens")
    auth_jwt_issuer: str | None = Field(None, min_length=1, description="issuer that a JSON Web Token must name")
    auth_jwt_audience: str | None = Field(None, min_length=1, description="audience that a JSON Web Token must name")
    trust_tenant_metadata: bool = Field(False, description="believe every caller's x-pagewire-tenant: behind a proxy")
    tenants_share_pages: bool = Field(False, description="let tenants find each other's cached pages")
    max_tenant_requests: CountOrZero = Field(0, description="most requests of a tenant at once; 0: no limit")
    tenant_requests_per_minute: CountOrZero = Field(0, description="most that a tenant may begin; 0: no limit")
    prefix_hash_key_file: Path | None = Field(None, description="32 bytes; made in the state directory if not given")
    state_dir: Path | None = Field(None, description="directory of sockets and keys")
    trace_file: Path | None = Field(None, description="write each call of the core there, to replay it")
    otlp_endpoint: str | None = Field(None, description="OTLP/gRPC collector of traces: http://HOST:PORT")
    log_format: Literal["text", "json"] = Field("text", description="form of the log on stderr")

    @field_validator("worker_endpoint")
    @classmethod
    def _endpoint(cls, value: str) -> str:
        port = value.rpartition(":")[2]
        is_tcp = value.startswith("tcp://") and port.isascii() and port.isdigit() and 0 < int(port) < 65536
        path = value.removeprefix("ipc://")
        is_ipc = path != value and path[:1] not in ("", "@")  # everybody may connect to an abstract socket
        if value and not is_tcp and not is_ipc:
            raise ValueError("must be ipc://PATH or tcp://ADDRESS:PORT")
        return value

    @field_validator("otlp_endpoint")
    @classmethod
    def _collector(cls, value: str | None) -> str | None:
        if value and not re.fullmatch(r"https?://[^/\s]+/?", value):
            raise ValueError("must be http://HOST:PORT or https://HOST:PORT")
        if value and importlib.util.find_spec("opentelemetry.sdk") is None:
            raise ValueError('needs pip install ".[tracing]" in a checkout')
        return value or None

    @field_validator("tenant_weights", mode="before")
    @classmethod
    def _pairs(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        pairs = [pair.rpartition("=") for pair in value.split(",") if pair]
        if not all(name and weight for name, _, weight in pairs):
            raise ValueError("must be NAME=WEIGHT,NAME=WEIGHT")
        return {name.strip(): weight for name, _, weight in pairs}

    @model_validator(mode="after")
    def _private_or_allowed(self) -> "SchedulerConfig":
        authenticates = self.tls_client_ca or self.auth_tokens_file or self.auth_jwks_file
        if not (authenticates or self.allow_unauthenticated or _is_loopback(self.host)):
            raise ValueError(
                f"--host {self.host}: without authentication (--auth-tokens-file, --auth-jwks-file or --tls-client-ca) "
                "only a loopback address is allowed, unless --allow-unauthenticated is given"
            )
        if self.metrics_port and self.metrics_port in (self.port, self.internal_port):
            raise ValueError(f"--metrics-port {self.metrics_port}: must differ from --port and --internal-port")
        if self.internal_port == self.port:
            raise ValueError(f"--internal-port {self.internal_port}: must differ from --port")
        return self

    @model_validator(mode="after")
    def _encrypted(self) -> "SchedulerConfig":
        address = self.worker_endpoint.removeprefix("tcp://").rpartition(":")[0]
        if self.zmq_curve_dir is None and self.worker_endpoint.startswith("tcp://") and not _is_loopback(address):
            raise ValueError(
                f"--worker-endpoint {self.worker_endpoint}: a link beyond this machine needs --zmq-curve-dir"
            )
        return self

    @model_validator(mode="after")
    def _complete(self) -> "SchedulerConfig":
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("--tls-cert and --tls-key: one is of no use without the other")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError(f"--tls-client-ca {self.tls_client_ca}: needs --tls-cert and --tls-key")
        if self.auth_jwks_file is None and (self.auth_jwt_issuer or self.auth_jwt_audience):
            raise ValueError("--auth-jwt-issuer and --auth-jwt-audience: need --auth-jwks-file")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, _Environment(settings_cls, env_settings)


class _Environment(PydanticBaseSettingsSource):
    """The environment without what Kubernetes puts there: PAGEWIRE_PORT=tcp://... for a Service called pagewire."""

    def __init__(self, settings_cls: type[BaseSettings], source: PydanticBaseSettingsSource) -> None:
        super().__init__(settings_cls)
        self._source = source

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self._source.get_field_value(field, field_name)

    def __call__(self) -> dict[str, Any]:
        found = self._source()
        if "://" in str(found.get("port", "")):
            structlog.get_logger().warning("PAGEWIRE_PORT ignored: a Service of Kubernetes, not a port")
            del found["port"]
        return found


def load(arguments: Sequence[str]) -> SchedulerConfig:
    """The settings that flags, environment and file give together.

    Raises: ConfigError; SystemExit for ``--help``.
    """
    given = {name: value for name, value in vars(_parser().parse_args(arguments)).items() if value is not None}
    path = given.pop("config", None) or os.environ.get("PAGEWIRE_CONFIG")
    from_file = _read_file(Path(path)) if path else {}
    try:
        return _with_file(from_file)(**given)
    except ValidationError as error:
        raise ConfigError(_one_line(error)) from None


def runtime_dir() -> str | None:
    """XDG_RUNTIME_DIR."""
    return os.environ.get("XDG_RUNTIME_DIR") or None


def _with_file(from_file: dict[str, Any]) -> type[SchedulerConfig]:
    """The settings class whose last source is a file's content."""

    class _Content(PydanticBaseSettingsSource):
        def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
            return from_file.get(field_name), field_name, False

        def __call__(self) -> dict[str, Any]:
            return from_file

    class _Configured(SchedulerConfig):
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *sources: PydanticBaseSettingsSource, **named: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return (*super().settings_customise_sources(settings_cls, *sources, **named), _Content(settings_cls))

    return _Configured


def _read_file(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--config {path}: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict | None):
        raise ConfigError(f"--config {path}: must hold settings by name")
    named = {str(name).replace("-", "_"): value for name, value in (content or {}).items()}
    return {name: value for name, value in named.items() if name in SchedulerConfig.model_fields and value is not None}


class OneLineParser(argparse.ArgumentParser):
    """A wrong argument is a ConfigError of one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (--help lists the flags)")


def _parser() -> argparse.ArgumentParser:
    """Knows names only: values are judged together with those of the other sources."""
    parser = OneLineParser(prog="python -m scheduler_svc", allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", help="YAML file with settings by the names of these flags")
    for name, field in SchedulerConfig.model_fields.items():
        help_text = f"{field.description} (default: {field.default})".replace("%", "%%")
        if field.annotation is bool:
            parser.add_argument(_flag(name), action=argparse.BooleanOptionalAction, default=None, help=help_text)
        else:
            parser.add_argument(_flag(name), metavar="VALUE", help=help_text)
    return parser


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _one_line(error: ValidationError) -> str:
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ").partition(", unable to parse")[0]
    if not first["loc"]:
        return message
    name, *keys = (str(part) for part in first["loc"])
    return f"{_flag(name)} {'='.join([*keys, str(first['input'])])}: {_allowed(message)}"


def _allowed(message: str) -> str:
    return message.replace("Input should be", "must be", 1).replace("String should", "must", 1)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
