"""The file of tokens, certificates and tenants (--auth-tokens-file), in YAML; its form is in docs/security.md.

It holds digests, not tokens. Tokens are random and long, so a plain SHA-256 hides them; looking one up by its digest
tells nothing by the time it takes. Every mistake in the file is an error: a token that silently means something else is
worse than a server that does not start.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml

from scheduler_svc.front.caller import Caller, Role, TenantLimits
from scheduler_svc.front.reloaded_file import FileError, read_bytes

FLAG = "--auth-tokens-file"
MAX_TENANT_CHARS = 128
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The other takes the loop half a second for a thousand tokens."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_DIGEST_OF_NOTHING = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    caller: Caller
    expires: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFile:
    """What the file says."""

    tokens: Mapping[str, _Entry] = field(default_factory=dict)
    """By their digests."""
    certificates: Mapping[str, _Entry] = field(default_factory=dict)
    """By a subject alternative name."""
    tenants: Mapping[str, TenantLimits] = field(default_factory=dict)

    def caller_of_token(self, token: str) -> Caller | None:
        """Whose token it is; None: nobody's, or no longer."""
        return _valid(self.tokens.get(hashlib.sha256(token.encode()).hexdigest()))

    def caller_of_certificate(self, names: "list[str]") -> Caller | None:
        """Whom a client's certificate with these alternative names stands for, as far as the file says."""
        return next((found for name in names if (found := _valid(self.certificates.get(name))) is not None), None)


def read_token_file(path: Path) -> TokenFile:
    """Raises: FileError naming the entry at fault."""
    try:
        content = yaml.load(read_bytes(FLAG, path), _LOADER)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise FileError(f"{FLAG} {path}: is no YAML: {' '.join(str(error).split())[:200]}") from None
    try:
        return _parse(content)
    except ValueError as error:
        raise FileError(f"{FLAG} {path}: {error}") from None


def check_tenant(name: object) -> str:
    """A tenant's name. Raises: ValueError."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_TENANT_CHARS or not name.isprintable():
        raise ValueError(f"a tenant's name has 1 to {MAX_TENANT_CHARS} printable characters")
    return name


def _valid(entry: _Entry | None) -> Caller | None:
    if entry is None or (entry.expires is not None and entry.expires <= datetime.now(timezone.utc)):
        return None
    return entry.caller


def _parse(content: object) -> TokenFile:
    top = _mapping("the file", content, {"tokens", "certificates", "tenants"})
    return TokenFile(
        tokens=_entries(top, "tokens", "sha256", _digest),
        certificates=_entries(top, "certificates", "san", _name),
        tenants={
            check_tenant(name): _limits(f"tenants.{name}", limits)
            for name, limits in _mapping("tenants", top.get("tenants") or {}, None).items()
        },
    )


def _entries(top: Mapping[str, Any], section: str, key: str, read_key: Callable[[object], str]) -> dict[str, _Entry]:
    found: dict[str, _Entry] = {}
    entries = top.get(section) or []
    if not isinstance(entries, list):
        raise ValueError(f"{section} must be a list")
    for place, content in enumerate(entries):
        where = f"{section}[{place}]"
        entry = _mapping(where, content, {key, "tenant", "role", "expires"})
        try:
            name = read_key(entry.get(key))
            caller = Caller(tenant=check_tenant(entry.get("tenant")), role=Role(entry.get("role", "user")))
            expires = _expires(entry.get("expires"))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        if name in found:
            raise ValueError(f"{where}: the same {key} twice")
        found[name] = _Entry(caller=caller, expires=expires)
    return found


def _mapping(where: str, content: object, allowed: set[str] | None) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ValueError(f"{where} must be a mapping")
    for name in content:
        if not isinstance(name, str) or (allowed is not None and name not in allowed):
            names = ", ".join(sorted(allowed or ()))
            raise ValueError(f"{where}: {name!r} is not known here" + f"; allowed: {names}" * bool(names))
    return content


def _limits(where: str, content: object) -> TenantLimits:
    limits = _mapping(where, content, {"max_concurrent_requests", "requests_per_minute"})
    for name, limit in limits.items():
        if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit < 2**31:
            raise ValueError(f"{where}.{name}: must be an integer from 0 (no limit) to {2**31 - 1}")
    return TenantLimits(**limits)


def _digest(value: object) -> str:
    text = str(value).lower()
    if not _DIGEST.fullmatch(text) or text == _DIGEST_OF_NOTHING:
        raise ValueError("sha256 must be the 64 hexadecimal digits of a token's SHA-256")
    return text


def _name(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("san must be a subject alternative name")
    return value


def _expires(value: object) -> datetime | None:
    """YAML reads a time; without a zone it is UTC."""
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise ValueError("expires must be a time such as 2030-01-31T00:00:00Z")
    return value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)
