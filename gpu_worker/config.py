"""The worker's configuration: flag > PAGEWIRE_* environment > YAML file > default.

The only module of the worker that reads the environment. A wrong value becomes a ConfigError of one line naming the
flag, the value and what is allowed. Settings of other processes in the environment or the file are ignored.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)
from yaml import YAMLError

from gpu_worker import endpoint
from gpu_worker.errors import ConfigError

ENV_PREFIX = "PAGEWIRE_"


class WorkerConfig(BaseSettings):
    """One worker."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="ignore", protected_namespaces=(), frozen=True)

    model: Path = Field(description="Hugging Face directory with safetensors, or a .gguf file")
    tokenizer: Path | None = Field(None, description="directory with another tokenizer.json than the model's own")
    scheduler: str = Field(description="endpoint of the scheduler, ipc:///PATH or tcp://HOST:PORT")
    zmq_curve_dir: Path | None = Field(None, description="directory of this worker's key and the scheduler's")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where to compute")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", description="of weights and activations")
    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "float16", "fp8"] = Field(
        "auto", description="auto: as --dtype; fp8, on a GPU alone: e4m3, half the bytes"
    )
    load_format: Literal["auto", "dummy"] = Field(
        "auto", description="dummy: random weights, from config.json and the tokenizer alone"
    )
    quantization: Literal["auto", "none", "awq", "gptq", "compressed-tensors", "fp8", "gguf"] = Field(
        "auto", description="auto: as the checkpoint says; another: refuse a checkpoint that is not this"
    )
    quantization_prefill: Literal["auto", "copy", "codes"] = Field(
        "auto", description="many rows: copy keeps quantised weights also as floats, codes unpacks them (GPU)"
    )
    page_size: int = Field(32, ge=1, le=1024, description="tokens a page holds")
    max_num_seqs: int | None = Field(None, ge=1, le=65536, description="most requests at once; GPU 256, CPU 64")
    max_num_batched_tokens: int | None = Field(
        None, ge=1, le=1 << 20, description="most tokens a step; GPU 8192, CPU 512"
    )
    max_model_len: int | None = Field(None, ge=2, description="most tokens of a request; the model's")
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1, description="share of the GPU's memory this process may use")
    kv_cache_memory_bytes: int | None = Field(None, ge=1, description="bytes of the page pool; a share of free memory")
    cpu_threads: int = Field(0, ge=0, le=1024, description="threads on a CPU; 0: measured")
    tensor_parallel_size: int = Field(1, ge=1, le=64, description="ranks of this worker, each with a GPU of its own")
    served_model_name: str | None = Field(None, min_length=1, description="the model's name for clients; its file name")
    kernels: Literal["auto", "triton", "cpu", "reference"] = Field("auto", description="kernel set; auto by device")
    enforce_eager: bool = Field(False, description="launch steps operation by operation, without CUDA graphs")
    log_format: Literal["text", "json"] = Field("text", description="of the log on stderr")

    @field_validator("model")
    @classmethod
    def _model_named(cls, value: Path) -> Path:
        if not str(value).strip() or str(value) == ".":
            raise ValueError("a path is needed")
        return value.expanduser()

    @field_validator("scheduler")
    @classmethod
    def _usable_endpoint(cls, value: str) -> str:
        return endpoint.usable(value)

    @model_validator(mode="after")
    def _encrypted(self) -> "WorkerConfig":
        if self.zmq_curve_dir is None and endpoint.leaves_the_host(self.scheduler):
            raise ValueError(
                f"--scheduler {self.scheduler}: not allowed without --zmq-curve-dir; allowed: ipc:///PATH, "
                "tcp://127.0.0.1:PORT"
            )
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
        """Flags, then the environment; ``load_config`` puts the file between it and the defaults."""
        return init_settings, env_settings


def load_config(arguments: Sequence[str]) -> WorkerConfig:
    """Read flags, environment and file. Raises ConfigError; ``--help`` ends the process."""
    flags = vars(_parser().parse_args(arguments))
    file = flags.pop("config") or os.environ.get(f"{ENV_PREFIX}CONFIG")
    given = {name: value for name, value in flags.items() if value is not None}
    settings = _with_file(Path(file)) if file else WorkerConfig
    try:
        return settings(**given)
    except ValidationError as error:
        raise ConfigError(_one_line(error)) from None
    except (YAMLError, OSError, TypeError, ValueError) as error:
        raise ConfigError(f"--config {file}: {str(error).splitlines()[0]}; allowed: a readable YAML file") from None


def _with_file(path: Path) -> type[WorkerConfig]:
    """The settings class that also reads ``path``, after the environment."""
    if not path.is_file():
        raise ConfigError(f"--config {path}: no such file")

    class FileWorkerConfig(WorkerConfig):
        model_config = SettingsConfigDict(yaml_file=path, yaml_file_encoding="utf-8")

        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *args: Any, **kwargs: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            earlier = super().settings_customise_sources(settings_cls, *args, **kwargs)
            return (*earlier, _DashedYaml(settings_cls, path))

    return FileWorkerConfig


class _DashedYaml(YamlConfigSettingsSource):
    """A YAML file whose keys are flag names, with dashes or underscores."""

    def _read_file(self, file_path: Any) -> dict[str, Any]:
        content: Any = super()._read_file(file_path)
        if not isinstance(content, dict):
            raise TypeError("no mapping of names to values")
        return {str(key).replace("-", "_"): value for key, value in content.items()}


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="python -m gpu_worker", description="One Pagewire worker.", allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", help="YAML file with the same names")
    for name, field in WorkerConfig.model_fields.items():
        if name == "model":
            parser.add_argument("model", nargs="?", metavar="MODEL", help=field.description)
        elif field.annotation is bool:
            parser.add_argument(_flag(name), action=argparse.BooleanOptionalAction, help=field.description)
        else:
            parser.add_argument(_flag(name), dest=name, metavar="VALUE", help=field.description)
    return parser


class OneLineParser(argparse.ArgumentParser):
    """A wrong argument is a ConfigError of one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _one_line(error: ValidationError) -> str:
    """The first violation as ``--flag value: must be what is allowed``, as the scheduler says it."""
    first = error.errors()[0]
    if not first["loc"]:
        return str(first["msg"]).removeprefix("Value error, ")
    name = str(first["loc"][0])
    label = "MODEL" if name == "model" else _flag(name)
    if first["type"] == "missing":
        return f"{label} is needed"
    message = first["msg"].removeprefix("Value error, ").partition(", unable to parse")[0]
    return f"{label} {first['input']}: {message.replace('Input should be', 'must be', 1)}"
