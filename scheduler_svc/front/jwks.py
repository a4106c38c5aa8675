"""JSON Web Tokens (RFC 7519), checked by the public keys of a file (--auth-jwks-file, RFC 7517).

Only signatures with a private key count, and only by the algorithm of the key itself: a token chooses the key, never
how it is checked. A token without an expiry is refused.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt

from scheduler_svc.front.caller import Caller, Role
from scheduler_svc.front.errors import UnauthenticatedError
from scheduler_svc.front.reloaded_file import FileError, ReloadedFile, read_bytes
from scheduler_svc.front.token_file import check_tenant

FLAG = "--auth-jwks-file"
ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "ES256K", "EdDSA"}
)
LEEWAY_SECONDS = 10
TENANT_CLAIM, ROLE_CLAIM = "pagewire_tenant", "pagewire_role"


class UnknownKeyError(Exception):
    """The token names a key that the file does not hold."""


_REASONS: Mapping[type[Exception], str] = {
    jwt.ExpiredSignatureError: "it has expired",
    jwt.ImmatureSignatureError: "it is not valid yet",
    jwt.InvalidIssuerError: "its issuer is another",
    jwt.InvalidAudienceError: "its audience is another",
    jwt.MissingRequiredClaimError: "a claim is missing",
    jwt.InvalidSignatureError: "no key of ours signed it",
    jwt.InvalidAlgorithmError: "its algorithm is not that of the key",
    jwt.DecodeError: "it is no JSON Web Token",
    UnknownKeyError: "no key of ours has its key id",
}
"""The first kind that fits; what is behind belongs to none before it."""


class Jwks:
    """Tells whose token it is. Without ``pagewire_tenant`` the tenant is the token's subject."""

    def __init__(self, path: Path, *, issuer: str | None, audience: str | None) -> None:
        """Raises: FileError."""
        self._keys = ReloadedFile([path], lambda: _read(path))
        self._issuer = issuer
        self._audience = audience

    def caller_of_token(self, token: str) -> Caller:
        """Raises: UnauthenticatedError."""
        try:
            key = self._key(jwt.get_unverified_header(token).get("kid"))
            claims = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                issuer=self._issuer,
                audience=self._audience,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp"], "verify_aud": self._audience is not None},
            )
            return _caller(claims)
        except (jwt.PyJWTError, ValueError, UnknownKeyError) as error:
            raise UnauthenticatedError(f"the token is refused: {_why(error)}") from None

    def _key(self, key_id: object) -> jwt.PyJWK:
        keys = self._keys.current()
        if key_id is None and len(keys) == 1:
            return next(iter(keys.values()))
        found = keys.get(str(key_id))
        if found is None:
            raise UnknownKeyError
        return found


def _why(error: Exception) -> str:
    """In our words: a library's may repeat what the token holds."""
    return next((text for kind, text in _REASONS.items() if isinstance(error, kind)), "its claims are not allowed here")


def _caller(claims: Mapping[str, Any]) -> Caller:
    """Raises: ValueError."""
    tenant = check_tenant(claims.get(TENANT_CLAIM, claims.get("sub")))
    return Caller(tenant=tenant, role=Role(claims.get(ROLE_CLAIM, Role.USER.value)))


def _read(path: Path) -> dict[str, jwt.PyJWK]:
    """Usable keys by their ids. Raises: FileError if there is none."""
    try:
        found = jwt.PyJWKSet.from_json(read_bytes(FLAG, path).decode()).keys
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise FileError(f"{FLAG} {path}: is no JWK set: {' '.join(str(error).split())[:200]}") from None
    keys = {
        str(key.key_id or ""): key
        for key in found
        if key.algorithm_name in ALGORITHMS and key.public_key_use in (None, "sig")
    }
    if not keys:
        raise FileError(f"{FLAG} {path}: holds no public key for signatures")
    return keys
