"""The public port's certificate: checked whole before it is used, and replaced while connections stand.

gRPC asks for it at every handshake, so that a rotated certificate serves the next connection; those that stand keep
theirs. A pair that does not belong together never replaces one that does. What has not changed is not replaced: gRPC
frees what it had while another handshake may just use it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, SECP384R1, SECP521R1
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificates

from scheduler_svc.front.reloaded_file import FileError, ReloadedFile, read_bytes

_CURVES = (SECP256R1, SECP384R1, SECP521R1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files. With ``client_ca`` every client must show a certificate that it signed."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        return (self.cert, self.key) if self.client_ca is None else (self.cert, self.key, self.client_ca)


@dataclass(frozen=True, slots=True)
class Pems:
    """The files' content."""

    cert: bytes
    key: bytes
    client_ca: bytes | None


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Credentials of a server that follow the files.

    Raises: FileError.
    """
    followed = FollowedPems(files)

    def changed() -> Any:  # gRPC's types do not say that None means no change
        pems = followed.changed()
        return None if pems is None else _configuration(pems)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(followed.pems),
        changed,
        require_client_authentication=files.client_ca is not None,
    )


class FollowedPems:
    """What was read last."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises: FileError."""
        self._followed = ReloadedFile(files.paths, lambda: _read(files))
        self.pems = self._followed.current()

    def changed(self) -> Pems | None:
        """None if it is what it was."""
        before, self.pems = self.pems, self._followed.current()
        return None if self.pems is before else self.pems


def _configuration(pems: Pems) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.cert)], root_certificates=pems.client_ca)


def _read(files: TlsFiles) -> Pems:
    """Raises: FileError unless key and certificate belong together."""
    cert, key = read_bytes("--tls-cert", files.cert), read_bytes("--tls-key", files.key)
    try:
        public_key = load_pem_x509_certificates(cert)[0].public_key()
    except (ValueError, UnsupportedAlgorithm):
        raise FileError(f"--tls-cert {files.cert}: holds no PEM certificate") from None
    try:
        private_key = load_pem_private_key(key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise FileError(f"--tls-key {files.key}: holds no PEM private key without a password") from None
    curve = getattr(private_key, "curve", None)
    if not isinstance(private_key, RSAPrivateKey) and not isinstance(curve, _CURVES):
        raise FileError(f"--tls-key {files.key}: gRPC's clients take keys of RSA, P-256, P-384 and P-521 alone")
    if private_key.public_key() != public_key:
        raise FileError(f"--tls-key {files.key}: is not the key of --tls-cert {files.cert}")
    return Pems(cert, key, None if files.client_ca is None else _client_ca(files.client_ca))


def _client_ca(path: Path) -> bytes:
    """Raises: FileError if there is no certificate in it: nobody could connect."""
    content = read_bytes("--tls-client-ca", path)
    try:
        load_pem_x509_certificates(content)
    except ValueError:
        raise FileError(f"--tls-client-ca {path}: holds no PEM certificate") from None
    return content
