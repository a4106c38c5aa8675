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
        except (jwt.PyJWTError, ValueError) as error:
            raise UnauthenticatedError(f"the token is refused: {type(error).__name__}") from None

    def _key(self, key_id: object) -> jwt.PyJWK:
        keys = self._keys.current()
        if key_id is None and len(keys) == 1:
            return next(iter(keys.values()))
        found = keys.get(str(key_id))
        if found is None:
            raise ValueError("no key of this id")
        return found


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
