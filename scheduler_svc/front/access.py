"""Who may call what, decided before a call's bytes are read.

A caller shows a token (`authorization: Bearer ...` or `x-api-key`), or is known by its certificate. One that shows a
token is judged by it alone. Where nothing is configured everybody is nobody, of the tenant "". A tenant may be named in
metadata by callers that are trusted with it: proxies, admins, and everybody behind a proxy if the operator says so.
Health alone is open to all.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from scheduler_svc.front.caller import CALLER, NOBODY, UNLIMITED, Caller, Role, TenantLimits
from scheduler_svc.front.errors import NotAllowedError, Reason, UnauthenticatedError
from scheduler_svc.front.reloaded_file import ReloadedFile
from scheduler_svc.front.token_file import TokenFile, check_tenant, read_token_file
from scheduler_svc.log import SparseLog

if TYPE_CHECKING:
    from scheduler_svc.front.jwks import Jwks

TENANT_KEY = "x-pagewire-tenant"
_SECRET_KEYS = ("authorization", "x-api-key")
OPEN = ("/grpc.health.v1.Health/",)
ADMIN = ("/pagewire.v1.AdminService/", "/pagewire.v1.CacheService/ResetPrefixCache", "/grpc.channelz.v1.Channelz/")
MAX_SECRET_CHARS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions:
    """How callers are known."""

    tokens_file: Path | None = None
    jwks_file: Path | None = None
    jwt_issuer: str | None = None
    jwt_audience: str | None = None
    client_certificates: bool = False
    """Every client has shown one."""
    trust_tenant_metadata: bool = False
    limits: TenantLimits = UNLIMITED
    """Of tenants that the tokens file gives none."""

    @property
    def authenticates(self) -> bool:
        """Whether callers must be known."""
        return self.client_certificates or self.tokens_file is not None or self.jwks_file is not None


class Access:
    """Of the public port."""

    def __init__(self, options: AccessOptions) -> None:
        """Raises: FileError."""
        self._options = options
        path = options.tokens_file
        self._tokens = None if path is None else ReloadedFile([path], lambda: read_token_file(path))
        self._jwks = _jwks(options)
        self._log = SparseLog()

    @contextmanager
    def admit(self, context: Any, method: str) -> Iterator[None]:
        """The duration of a call by a caller who may make it.

        Raises: UnauthenticatedError, NotAllowedError.
        """
        if method.startswith(OPEN):
            yield
            return
        try:
            caller = self.identify(context.invocation_metadata() or (), context.auth_context())
            if caller.role is not Role.ADMIN and method.startswith(ADMIN):
                raise NotAllowedError("this method needs the role admin")
        except (UnauthenticatedError, NotAllowedError) as error:
            self._log.warning("call_refused", monotonic(), method=method, peer=context.peer(), reason=error.message)
            raise
        with _known(caller):
            yield

    def is_stranger(self, metadata: Iterable[tuple[str, Any]], method: str) -> bool:
        """Whether metadata alone says that this call will be refused, so that nothing more of it need be received.

        Certificates are not known yet, and signatures are not checked twice.
        """
        if method.startswith(OPEN) or not self._options.authenticates or self._options.client_certificates:
            return False
        try:
            secret = _secret(_single(metadata))
        except UnauthenticatedError:
            return True
        if secret is None:
            return True
        may_be_signed = self._jwks is not None and secret.count(".") == 2
        return not may_be_signed and (self._tokens is None or self._tokens.current().caller_of_token(secret) is None)

    def identify(self, metadata: Iterable[tuple[str, Any]], auth: Mapping[str, Iterable[bytes]]) -> Caller:
        """The caller of a call with this metadata and this (gRPC's) authentication context.

        Raises: UnauthenticatedError, NotAllowedError.
        """
        found = _single(metadata)
        caller = self._authenticated(found, auth)
        named = found.get(TENANT_KEY)
        if named is not None and named != caller.tenant:
            if caller.role is Role.USER and not self._options.trust_tenant_metadata:
                raise NotAllowedError(f"{TENANT_KEY} is taken from a trusted proxy alone")
            caller = replace(caller, tenant=_tenant(named))
        tenants = {} if self._tokens is None else self._tokens.current().tenants
        limits = tenants.get(caller.tenant, self._options.limits)
        return caller if caller.limits is limits else replace(caller, limits=limits)

    def _authenticated(self, metadata: Mapping[str, str], auth: Mapping[str, Iterable[bytes]]) -> Caller:
        secret = _secret(metadata)
        if secret is not None:
            return self._of_secret(secret)
        names = _alternative_names(auth) if self._options.client_certificates else []
        if names:
            listed = None if self._tokens is None else self._tokens.current().caller_of_certificate(names)
            return listed or Caller(tenant=_tenant(names[0]))
        if self._options.authenticates:
            raise UnauthenticatedError("the call shows no credentials", Reason.NO_CREDENTIALS)
        return NOBODY

    def _of_secret(self, secret: str) -> Caller:
        tokens = TokenFile() if self._tokens is None else self._tokens.current()
        caller = tokens.caller_of_token(secret)
        if caller is None and self._jwks is not None:
            caller = self._jwks.caller_of_token(secret)
        if caller is None and not self._options.authenticates:
            return NOBODY  # a client that is used to show a token, at a server that asks for none
        if caller is None:
            raise UnauthenticatedError("the token is not known or no longer valid")
        return caller


class InternalAccess:
    """Of the internal port, which only this machine reaches: every caller is an admin, and may name a tenant."""

    @contextmanager
    def admit(self, context: Any, method: str) -> Iterator[None]:
        """The duration of a call. Raises: NotAllowedError."""
        named = _single(context.invocation_metadata() or ()).get(TENANT_KEY)
        with _known(Caller(tenant="" if named is None else _tenant(named), role=Role.ADMIN)):
            yield


@contextmanager
def _known(caller: Caller) -> Iterator[None]:
    token = CALLER.set(caller)
    try:
        yield
    finally:
        CALLER.reset(token)


def _jwks(options: AccessOptions) -> "Jwks | None":
    if options.jwks_file is None:
        return None
    from scheduler_svc.front.jwks import Jwks  # loads a library that few servers need

    return Jwks(options.jwks_file, issuer=options.jwt_issuer, audience=options.jwt_audience)


def _single(metadata: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """The keys that say who calls. Of one that comes twice nobody can tell which a proxy has set.

    Raises: UnauthenticatedError.
    """
    found: dict[str, str] = {}
    for key, value in metadata:
        if key in (*_SECRET_KEYS, TENANT_KEY):
            if key in found:
                raise UnauthenticatedError(f"{key} comes twice")
            found[key] = str(value)
    return found


def _secret(metadata: Mapping[str, str]) -> str | None:
    """The token a call shows. Raises: UnauthenticatedError for another scheme than Bearer."""
    given = metadata.get("authorization")
    if given is None:
        secret = metadata.get("x-api-key")
    else:
        scheme, _, secret = given.partition(" ")
        if scheme.lower() != "bearer":
            raise UnauthenticatedError("authorization must be Bearer TOKEN")
    if secret is not None and not 0 < len(secret := secret.strip()) <= MAX_SECRET_CHARS:
        raise UnauthenticatedError("the token is empty or too long")
    return secret


def _alternative_names(auth: Mapping[str, Iterable[bytes]]) -> list[str]:
    """Of a client's certificate, URIs (as SPIFFE ids are) first."""
    names = [name.decode(errors="replace") for name in auth.get("x509_subject_alternative_name", ())]
    return sorted(names, key=lambda name: "://" not in name)


def _tenant(name: str) -> str:
    try:
        return check_tenant(name)
    except ValueError as error:
        raise NotAllowedError(str(error)) from None
