"""How the commands that call a server say who they are: options before the command's name or behind it, or the
environment.

pagewire generate "..." --target server:50051 --tls-ca ca.pem --token-file token
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ..admin import AdminClient
from ..aio import AsyncClient
from ..channel import Tls
from .failures import UsageError

_PANEL = "Towards a server"
TENANT_KEY = "x-pagewire-tenant"
_NAMES = frozenset(
    ("--tls", "--tls-ca", "--tls-cert", "--tls-key", "--tls-server-name", "--token-file", "--tenant"),
)

UseTls = Annotated[bool, typer.Option("--tls", rich_help_panel=_PANEL, help="TLS, by the system's authorities.")]
TlsCa = Annotated[
    Path | None,
    typer.Option(envvar="PAGEWIRE_CLIENT_TLS_CA", rich_help_panel=_PANEL, help="TLS, by these authorities (PEM)."),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(envvar="PAGEWIRE_CLIENT_TLS_CERT", rich_help_panel=_PANEL, help="Our certificate (PEM)."),
]
TlsKey = Annotated[
    Path | None, typer.Option(envvar="PAGEWIRE_CLIENT_TLS_KEY", rich_help_panel=_PANEL, help="Its key (PEM).")
]
TlsName = Annotated[
    str | None, typer.Option(rich_help_panel=_PANEL, help="Name in the server's certificate, if not the target's.")
]
TokenFile = Annotated[
    Path | None, typer.Option(envvar="PAGEWIRE_TOKEN_FILE", rich_help_panel=_PANEL, help="File that holds our token.")
]
Tenant = Annotated[
    str | None,
    typer.Option(envvar="PAGEWIRE_TENANT", rich_help_panel=_PANEL, help="Whose requests; for proxies and admins."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What a client shows to a server."""

    tls: Tls | None = None
    token: str | None = None
    tenant: str | None = None


ACCESS: ContextVar[Access] = ContextVar("access", default=Access())  # noqa: B039 - frozen
"""What these options say."""


def read_access(
    *,
    tls: bool,
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_server_name: str | None,
    token_file: Path | None,
    tenant: str | None,
) -> Access:
    """Reads the files. Raises: UsageError."""
    if (tls_cert is None) != (tls_key is None):
        raise UsageError("--tls-cert and --tls-key: one is of no use without the other")
    uses_tls = tls or any(each is not None for each in (tls_ca, tls_cert, tls_server_name))
    shown = Tls(
        root_certificates=_read("--tls-ca", tls_ca),
        private_key=_read("--tls-key", tls_key),
        certificate_chain=_read("--tls-cert", tls_cert),
        server_name=tls_server_name,
    )
    token = _read("--token-file", token_file)
    return Access(
        tls=shown if uses_tls else None, token=None if token is None else _token(token, token_file), tenant=tenant
    )


def open_client(target: str, *, is_internal: bool = False) -> AdminClient:
    """A client that shows what the command line said. The internal port of this machine speaks no TLS."""
    access = ACCESS.get()
    tls = None if is_internal and is_loopback(target) else access.tls
    return AdminClient(target, tls=tls, token=access.token, metadata=_metadata(access))


def in_front(words: Sequence[str], commands: Collection[str]) -> list[str]:
    """A command line with these options before the command, where a caller may write them behind it as well.

    Only of ``commands``, which call a server: the services have flags of the same names.
    """
    place = 0
    while place < len(words) and words[place].startswith("-"):
        place += 1 + _has_value_behind(words[place])
    if place >= len(words) or words[place] not in commands:
        return list(words)
    moved, kept, rest = list(words[:place]), [words[place]], list(words[place + 1 :])
    while rest and rest[0] != "--":
        word = rest.pop(0)
        if word.partition("=")[0] not in _NAMES:
            kept.append(word)
            continue
        moved += [word, *(rest.pop(0) for _ in rest[: _has_value_behind(word)])]
    return [*moved, *kept, *rest]


def _has_value_behind(word: str) -> bool:
    return word in _NAMES and word != "--tls"


def open_async_client(target: str) -> AsyncClient:
    """The same for the running event loop."""
    access = ACCESS.get()
    return AsyncClient(target, tls=access.tls, token=access.token, metadata=_metadata(access))


def _metadata(access: Access) -> tuple[tuple[str, str], ...]:
    return () if access.tenant is None else ((TENANT_KEY, access.tenant),)


def _read(flag: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror}") from None


def _token(content: bytes, path: Path | None) -> str:
    try:
        token = content.decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if not token or not token.isprintable():
        raise UsageError(f"--token-file {path}: must hold one token")
    return token


def is_loopback(target: str) -> bool:
    """Whether HOST:PORT is on this machine for sure."""
    host = target.rpartition(":")[0].strip("[]")
    return host in ("localhost", "::1") or host.startswith("127.")
