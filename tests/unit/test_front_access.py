"""Who a caller is by what it shows, and what may be in the files that say so."""

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from structlog.testing import capture_logs

from scheduler_svc.front import reloaded_file
from scheduler_svc.front.access import Access, AccessOptions
from scheduler_svc.front.caller import Caller, Role, TenantLimits
from scheduler_svc.front.errors import FrontError, UnauthenticatedError
from scheduler_svc.front.jwks import Jwks
from scheduler_svc.front.reloaded_file import FileError, ReloadedFile
from scheduler_svc.front.token_file import read_token_file


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


TOKENS = f"""
tokens:
  - {{sha256: {digest("of acme")}, tenant: acme}}
  - {{sha256: {digest("of the mesh")}, tenant: mesh, role: proxy}}
  - {{sha256: {digest("of ops")}, tenant: ops, role: admin}}
  - {{sha256: {digest("old")}, tenant: acme, expires: 2020-01-01T00:00:00Z}}
certificates:
  - {{san: "spiffe://prod/api", tenant: acme}}
tenants:
  acme: {{max_concurrent_requests: 3, requests_per_minute: 60}}
"""


@pytest.fixture
def tokens_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.yaml"
    path.write_text(TOKENS)
    return path


def caller(
    options: AccessOptions, *metadata: tuple[str, str], names: tuple[bytes, ...] = (), **more: Any
) -> Caller | str:
    """The caller, or the reason of the refusal."""
    try:
        return Access(options).identify(metadata, {"x509_subject_alternative_name": names})
    except FrontError as error:
        return error.reason


def bearer(token: str) -> tuple[str, str]:
    return ("authorization", f"Bearer {token}")


LIMITS = TenantLimits(max_concurrent_requests=3, requests_per_minute=60)


def test_tokens(tokens_file: Path) -> None:
    options = AccessOptions(tokens_file=tokens_file, limits=TenantLimits(max_concurrent_requests=9))
    assert caller(options, bearer("of acme")) == Caller(tenant="acme", limits=LIMITS)
    assert caller(options, ("x-api-key", "of acme")) == Caller(tenant="acme", limits=LIMITS)
    ops = caller(options, ("authorization", "bearer of ops"))
    assert ops == Caller(tenant="ops", role=Role.ADMIN, limits=TenantLimits(max_concurrent_requests=9))
    assert caller(options) == "NO_CREDENTIALS"
    for wrong in ("of acmE", "old", "", "x" * 9000, digest("of acme")):
        assert caller(options, bearer(wrong)) == "BAD_CREDENTIALS"
    assert caller(options, ("authorization", "Basic b2Y=")) == "BAD_CREDENTIALS"
    assert caller(options, bearer("of acme"), bearer("of acme")) == "BAD_CREDENTIALS"


def test_a_tenant_named_in_metadata_counts_for_those_who_are_trusted(tokens_file: Path) -> None:
    options = AccessOptions(tokens_file=tokens_file)
    acme = ("x-pagewire-tenant", "acme")
    assert caller(options, bearer("of the mesh"), acme) == Caller(tenant="acme", role=Role.PROXY, limits=LIMITS)
    assert caller(options, bearer("of ops"), acme) == Caller(tenant="acme", role=Role.ADMIN, limits=LIMITS)
    assert caller(options, bearer("of acme"), acme) == Caller(tenant="acme", limits=LIMITS)
    assert caller(options, bearer("of acme"), ("x-pagewire-tenant", "other")) == "NOT_ALLOWED"
    assert caller(options, bearer("of the mesh"), acme, acme) == "BAD_CREDENTIALS"
    assert caller(options, bearer("of the mesh"), ("x-pagewire-tenant", "a\tb")) == "NOT_ALLOWED"
    assert caller(options, acme) == "NO_CREDENTIALS"
    assert caller(AccessOptions(), acme) == "NOT_ALLOWED"
    assert caller(AccessOptions(trust_tenant_metadata=True), acme) == Caller(tenant="acme")


def test_without_authentication_everybody_is_nobody() -> None:
    assert caller(AccessOptions()) == Caller()
    assert caller(AccessOptions(), bearer("whatever")) == Caller()
    # A certificate says who somebody is only where one was asked for and checked.
    assert caller(AccessOptions(), names=(b"spiffe://prod/api",)) == Caller()


def test_certificates(tokens_file: Path) -> None:
    options = AccessOptions(tokens_file=tokens_file, client_certificates=True)
    assert caller(options, names=(b"api.prod", b"spiffe://prod/api")) == Caller(tenant="acme", limits=LIMITS)
    assert caller(options, names=(b"api.prod", b"spiffe://prod/web")) == Caller(tenant="spiffe://prod/web")
    assert caller(options, bearer("of ops"), names=(b"spiffe://prod/api",)) == Caller(tenant="ops", role=Role.ADMIN)
    assert caller(options) == "NO_CREDENTIALS"


class Signer:
    """A key of an issuer."""

    def __init__(self, key_id: str = "1") -> None:
        self.key_id = key_id
        self.key = ec.generate_private_key(ec.SECP256R1())

    def jwk(self) -> dict[str, Any]:
        return {**json.loads(ECAlgorithm.to_jwk(self.key.public_key())), "kid": self.key_id, "use": "sig"}

    def token(self, **claims: Any) -> str:
        usual = {"sub": "acme", "iss": "us", "aud": "pagewire", "exp": time.time() + 60}
        named = {name: value for name, value in {**usual, **claims}.items() if value is not None}
        return jwt.encode(named, self.key, "ES256", {"kid": self.key_id})


def test_json_web_tokens(tmp_path: Path) -> None:
    signer, other, path = Signer(), Signer("2"), tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [signer.jwk()]}))
    options = AccessOptions(jwks_file=path, jwt_issuer="us", jwt_audience="pagewire")
    assert caller(options, bearer(signer.token())) == Caller(tenant="acme")
    claims = {"pagewire_tenant": "other", "pagewire_role": "admin"}
    assert caller(options, bearer(signer.token(**claims))) == Caller(tenant="other", role=Role.ADMIN)
    # Who shows no token, or none that could be one, is refused before his request is there.
    shown = (bearer(signer.token()), bearer("a.b.c"), bearer("abc"), ("x-api-key", ""), ("x-other", "a"))
    access = Access(options)
    assert [access.is_stranger([each], "/m") for each in shown] == [False, False, True, True, True]
    assert not Access(AccessOptions()).is_stranger((), "/m")
    wrong: dict[str, dict[str, Any]] = {
        "expired": {"exp": time.time() - 60},
        "for ever": {"exp": None},
        "not yet": {"nbf": time.time() + 60},
        "of another issuer": {"iss": "them"},
        "for another audience": {"aud": "them"},
        "of nobody": {"sub": ""},
        "of an unknown role": {"pagewire_role": "root"},
    }
    for what, changed in wrong.items():
        assert caller(options, bearer(signer.token(**changed))) == "BAD_CREDENTIALS", what
    assert caller(options, bearer(other.token())) == "BAD_CREDENTIALS"
    assert caller(options, bearer("a.b.c")) == "BAD_CREDENTIALS"
    unsigned = jwt.encode({"sub": "acme", "exp": time.time() + 60}, None, "none", {"kid": "1"})
    assert caller(options, bearer(unsigned)) == "BAD_CREDENTIALS"
    key_as_secret = jwt.encode({"sub": "acme", "exp": time.time() + 60}, "x" * 64, "HS256", {"kid": "1"})
    assert caller(options, bearer(key_as_secret)) == "BAD_CREDENTIALS"


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"exp": time.time() - 60}, "it has expired"),
        ({"exp": None}, "a claim is missing"),
        ({"nbf": time.time() + 6000}, "it is not valid yet"),
        ({"iss": "them"}, "its issuer is another"),
        ({"aud": "them"}, "its audience is another"),
        ({"pagewire_role": "root"}, "its claims are not allowed here"),
    ],
)
def test_why_a_token_is_refused_is_said_without_what_it_holds(
    tmp_path: Path, claims: dict[str, Any], said: str
) -> None:
    signer, path = Signer(), tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [signer.jwk()]}))
    keys = Jwks(path, issuer="us", audience="pagewire")
    for token, reason in (
        (signer.token(**claims), said),
        (Signer().token(), "no key of ours signed it"),
        (Signer("2").token(), "no key of ours has its key id"),
        ("a.b.c", "it is no JSON Web Token"),
    ):
        with pytest.raises(UnauthenticatedError, match=f"^the token is refused: {reason}$"):
            keys.caller_of_token(token)


ENTRY = f"{{sha256: {digest('x')}, tenant: a}}"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "the file must be a mapping"),
        ("tokens: {a: b}", "tokens must be a list"),
        ("users: []", "'users' is not known here; allowed: certificates, tenants, tokens"),
        ("tokens: [{sha256: abc, tenant: a}]", r"tokens\[0\]: sha256 must be the 64"),
        (f"tokens: [{{sha256: {digest('')}, tenant: a}}]", r"tokens\[0\]: sha256 must be the 64"),
        (f"tokens: [{{sha256: {digest('x')}}}]", r"tokens\[0\]: a tenant's name has 1 to"),
        (f"tokens: [{{sha256: {digest('x')}, tenant: a, role: root}}]", "'root' is not a valid Role"),
        (f"tokens: [{{sha256: {digest('x')}, tenant: a, expires: soon}}]", "expires must be a time"),
        (f"tokens: [{ENTRY}, {ENTRY}]", "the same sha256 twice"),
        ("tenants: {a: {requests_per_minute: -1}}", r"tenants\.a\.requests_per_minute: must be"),
        ("certificates: [{san: '', tenant: a}]", r"certificates\[0\]: san must be"),
        ("tokens: [", "is no YAML"),
        ("[" * 5000, "is no YAML"),
    ],
)
def test_mistakes_in_the_tokens_file_are_named(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text(content)
    with pytest.raises(FileError, match=said) as raised:
        read_token_file(path)
    assert str(raised.value).startswith(f"--auth-tokens-file {path}: ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "content", ["", "{}", "[" * 5000, '{"keys": []}', '{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}']
)
def test_mistakes_in_the_key_set_are_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(content)
    with pytest.raises(FileError, match="--auth-jwks-file"):
        Access(AccessOptions(jwks_file=path))


def test_files_are_read_again_and_a_broken_one_changes_nothing(
    tokens_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reloaded_file, "CHECK_SECONDS", 0.0)
    access = Access(AccessOptions(tokens_file=tokens_file))

    def tenant(token: str) -> str | None:
        try:
            return access.identify([bearer(token)], {}).tenant
        except FrontError:
            return None

    with capture_logs() as logs:
        tokens_file.write_text("tokens: [")
        assert tenant("of acme") == tenant("of acme") == "acme"
        tokens_file.unlink()
        assert tenant("of acme") == "acme"
        tokens_file.write_text(f"tokens: [{{sha256: {digest('new')}, tenant: newcomer}}]")
        assert (tenant("of acme"), tenant("new")) == (None, "newcomer")
    assert [entry["event"] for entry in logs] == ["file_not_reloaded", "file_reloaded"]


def test_a_file_that_cannot_be_read_at_first_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "none"
    with pytest.raises(FileError, match=r"--auth-tokens-file .*: No such file"):
        ReloadedFile([path], lambda: read_token_file(path))
