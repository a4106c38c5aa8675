"""The flags of the services, and which role each belongs to.

The services read and check values; this table only tells a flag from a value, and where to send it. Names are those of
docs/api.md. Invariant: an unknown flag is refused by name before anything starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from textwrap import wrap

from rich.markup import escape

from ..options import nearest
from .failures import UsageError


class Role(Enum):
    """Who reads a flag."""

    SCHEDULER = auto()
    WORKER = auto()
    LAUNCHER = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag, without its dashes. A switch takes no value and has a ``--no-`` form."""

    name: str
    roles: frozenset[Role]
    is_switch: bool
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One flag as given: ``argument`` is its value, None for a bare switch; ``is_off`` for its ``--no-`` form."""

    flag: Flag
    argument: str | None = None
    is_off: bool = False

    def word(self) -> str:
        """The word to pass on; one, so that a value may begin with a dash."""
        name = f"--no-{self.flag.name}" if self.is_off else f"--{self.flag.name}"
        return name if self.argument is None else f"{name}={self.argument}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A service command line: the model, if one was given, and flags in order."""

    model: str | None
    given: tuple[Given, ...]

    def value(self, name: str) -> str | None:
        """The last value given for a flag."""
        values = [given.argument for given in self.given if given.flag.name == name]
        return values[-1] if values else None

    def words_for(self, role: Role, leave_out: Iterable[str] = ()) -> list[str]:
        """The words of all flags of a role, but for those left out by name."""
        skipped = set(leave_out)
        chosen = [given for given in self.given if role in given.flag.roles and given.flag.name not in skipped]
        return [given.word() for given in chosen]


def _flags(roles: Iterable[Role], rows: dict[str, str], switches: Iterable[str] = ()) -> list[Flag]:
    names = set(switches)
    return [Flag(name=n, roles=frozenset(roles), is_switch=n in names, help=text) for n, text in rows.items()]


FLAGS: tuple[Flag, ...] = (
    *_flags(
        (Role.SCHEDULER, Role.WORKER),
        {
            "max-num-batched-tokens": "most tokens a step (default 8192, on a CPU 512)",
            "max-num-seqs": "most requests running at once, a worker (default 256, on a CPU 64)",
            "max-model-len": "largest prompt and output together (default: the model's)",
            "zmq-curve-dir": "keys of the link between scheduler and workers, for other machines",
            "log-format": "text or json",
            "config": "YAML file with any of these settings",
        },
    ),
    *_flags(
        (Role.SCHEDULER,),
        {
            "host": "address to listen on (default 127.0.0.1)",
            "port": "public port (default 50051)",
            "internal-port": "loopback port for operators (default 50052)",
            "front-processes": "number of front processes (default 1, beside a GPU on 8 cores or more 4)",
            "metrics-port": "Prometheus port; 0: none (default 9464)",
            "metrics-host": "address of the Prometheus port (default 127.0.0.1)",
            "otlp-endpoint": "where traces go: http://HOST:PORT of a collector",
            "worker-endpoint": "where workers connect (default: a socket in the state directory)",
            "enable-prefix-caching": "reuse computed prefixes (default on)",
            "long-prefill-token-threshold": "prompts longer than this are chunked further",
            "max-queued-requests": "most outputs waiting; 0: no limit (default 16384)",
            "max-queued-tokens": "most tokens of all that wait; 0: no limit (default 67108864)",
            "target-inter-token-ms": "how long a step may keep running streams waiting; 0: none (default: 50 on a GPU)",
            "page-watermark": "share of a worker's pages left to running requests (default 0.01)",
            "pin-share": "share of a worker's pages that pins may keep (default 0.25)",
            "scheduling-policy": "order of waiting requests: fcfs, priority or sjf (default priority)",
            "aging-seconds": "longest time that a deadline or a length holds a request back (default 300)",
            "tenant-fairness": "share the workers among tenants (default on)",
            "tenant-weights": "shares of tenants: NAME=WEIGHT,NAME=WEIGHT",
            "slow-reader-seconds": "a reader without progress for so long is cut off (default 30)",
            "max-connection-age-seconds": "then its client is told to connect anew; 0: no limit (default 0)",
            "max-connection-age-grace-seconds": "calls on it may go on so long; 0: no limit (default 0)",
            "worker-lost-seconds": "requests of a lost worker wait so long for another (default 5; with serve 60)",
            "worker-timeout-seconds": "a silent worker is given up after so long (default 3)",
            "drain-seconds": "running requests may take so long at a stop (default 30)",
            "drain-notice-seconds": "health says so this long before requests are refused (default 0)",
            "allow-unauthenticated": "allow a non-loopback host without authentication",
            "health-port": "port for health alone, on any interface (default 0: none)",
            "tls-cert": "PEM certificates of the public port",
            "tls-key": "PEM private key of the public port",
            "tls-client-ca": "PEM certificates that must have signed those of clients",
            "auth-tokens-file": "file of tokens, certificates and tenants",
            "auth-jwks-file": "file of public keys for JSON Web Tokens",
            "auth-jwt-issuer": "issuer that a JSON Web Token must name",
            "auth-jwt-audience": "audience that a JSON Web Token must name",
            "trust-tenant-metadata": "believe every caller's x-pagewire-tenant: behind a proxy",
            "tenants-share-pages": "let tenants find each other's cached pages",
            "max-tenant-requests": "most requests of a tenant at once (default 0: no limit)",
            "tenant-requests-per-minute": "most requests a tenant may begin (default 0: no limit)",
            "prefix-hash-key-file": "file with the page hash key (default: one in the state directory)",
            "state-dir": "directory for sockets and keys",
            "trace-file": "file that gets the scheduler's calls, for pagewire replay",
        },
        switches=(
            *("enable-prefix-caching", "tenant-fairness", "allow-unauthenticated"),
            *("trust-tenant-metadata", "tenants-share-pages"),
        ),
    ),
    *_flags(
        (Role.WORKER,),
        {
            "scheduler": "endpoint of the scheduler (serve sets it)",
            "tokenizer": "directory with another tokenizer.json than the model's own",
            "device": "auto, cuda or cpu (default auto)",
            "dtype": "type of weights and activations (default auto)",
            "kv-cache-dtype": "type of the KV cache (default auto)",
            "page-size": "tokens a page (default 32)",
            "gpu-memory-utilization": "share of the GPU's memory to use (default 0.9)",
            "kv-cache-memory-bytes": "size of the KV cache, instead of a share",
            "quantization": "quantization of the checkpoint (default: detected)",
            "quantization-prefill": "quantised weights for many rows on a GPU: auto, copy or codes (default auto)",
            "tensor-parallel-size": "ranks of a worker, each with a GPU of its own (default 1)",
            "enforce-eager": "launch steps operation by operation, without CUDA graphs",
            "load-format": "auto, or dummy: weights made up, to measure speed (default auto)",
            "kernels": "kernel set: auto, triton, cpu or reference (default auto)",
            "cpu-threads": "threads on a CPU (default: measured)",
            "served-model-name": "name requests use (default: from the model's path)",
        },
        switches=("enforce-eager",),
    ),
    *_flags((Role.LAUNCHER,), {"num-workers": "workers to start (default 1)"}),
)


_ELSEWHERE = {
    "model": "the model is an argument without a flag",
    "trust-remote-code": "code from a model directory is never executed",
    **{
        theirs: f"here it is --{ours}"
        for theirs, ours in {
            "block-size": "page-size",
            "data-parallel-size": "num-workers",
            "api-key": "auth-tokens-file",
            "ssl-certfile": "tls-cert",
            "ssl-keyfile": "tls-key",
            "ssl-ca-certs": "tls-client-ca",
            "otlp-traces-endpoint": "otlp-endpoint",
        }.items()
    },
}
"""What to say of flags that people know from vLLM, whose names here differ by more than some letters."""


def flags_of(*roles: Role) -> dict[str, Flag]:
    """The flags of some roles, by name."""
    return {flag.name: flag for flag in FLAGS if flag.roles & set(roles)}


def parse(arguments: Sequence[str], flags: dict[str, Flag], *, takes_model: bool) -> Parsed:
    """Tells flags, values and the model apart. Raises: UsageError, naming what is wrong."""
    model: str | None = None
    given: list[Given] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word.startswith("-") and len(word) > 1:
            given.append(_parse_flag(word, rest, flags))
        elif takes_model and model is None:
            model = word
        else:
            raise UsageError(f"unexpected argument {word!r}")
    return Parsed(model=model, given=tuple(given))


def _parse_flag(word: str, rest: list[str], flags: dict[str, Flag]) -> Given:
    name, has_value, argument = word.removeprefix("--").partition("=")
    flag = flags.get(name)
    if flag is None and name.startswith("no-") and not has_value:
        flag = flags.get(name.removeprefix("no-"))
        if flag is not None and flag.is_switch:
            return Given(flag=flag, is_off=True)
        flag = None
    if flag is None or not word.startswith("--"):
        raise UsageError(_unknown(word.partition("=")[0], name, has_value=bool(has_value), flags=flags))
    if flag.is_switch:
        return Given(flag=flag, is_off=bool(has_value) and not _is_on(name, argument))
    if has_value:
        return Given(flag=flag, argument=argument)
    if not rest:
        raise UsageError(f"--{name} needs a value: {flag.help}")
    return Given(flag=flag, argument=rest.pop(0))


def _unknown(word: str, name: str, *, has_value: bool, flags: dict[str, Flag]) -> str:
    switch = flags.get(name.removeprefix("no-"))
    if has_value and switch is not None and switch.is_switch:
        return f"{word} takes no value; --{switch.name} does"
    if name in _ELSEWHERE:
        return f"unknown flag {word}; {_ELSEWHERE[name]}"
    return f"unknown flag {word}{nearest(name, flags, prefix='--')}"


def _is_on(name: str, argument: str) -> bool:
    if argument.lower() not in ("true", "false", "1", "0"):
        raise UsageError(f"--{name} {argument}: must be true or false")
    return argument.lower() in ("true", "1")


_HELP_HEADER = """\
Flags; those without [no-] take a value. Each is also an environment variable
(--max-num-seqs: PAGEWIRE_MAX_NUM_SEQS) and a key of the --config file."""


def help_text(*roles: Role) -> str:
    """The flags as help text in two columns; it fits a terminal of 80 columns, and is escaped for rich."""
    lines = [_HELP_HEADER, ""]
    for name, flag in sorted(flags_of(*roles).items()):
        shown = f"--[no-]{name}" if flag.is_switch else f"--{name}"
        for line in wrap(flag.help, 46):
            lines.append(f"{shown:31} {line}")
            shown = ""
    return escape("\n".join(lines))
