"""The public port's certificate: checked whole before it is used, and replaced while connections stand.

gRPC asks for it at every handshake, so that a rotated certificate serves the next connection; those that stand keep
theirs. A pair that does not belong together never replaces one that does.
"""

from dataclasses import dataclass
from pathlib import Path

import grpc
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificates

from scheduler_svc.front.reloaded_file import FileError, ReloadedFile, read_bytes


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
class _Pems:
    cert: bytes
    key: bytes
    client_ca: bytes | None


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Credentials of a server that follow the files.

    Raises: FileError.
    """
    followed = ReloadedFile(files.paths, lambda: _read(files))
    return grpc.dynamic_ssl_server_credentials(
        _configuration(followed.current()),
        lambda: _configuration(followed.current()),
        require_client_authentication=files.client_ca is not None,
    )


def _configuration(pems: _Pems) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.cert)], root_certificates=pems.client_ca)


def _read(files: TlsFiles) -> _Pems:
    """Raises: FileError unless key and certificate belong together."""
    cert, key = read_bytes("--tls-cert", files.cert), read_bytes("--tls-key", files.key)
    try:
        public_key = load_pem_x509_certificates(cert)[0].public_key()
    except ValueError:
        raise FileError(f"--tls-cert {files.cert}: holds no PEM certificate") from None
    try:
        private_key = load_pem_private_key(key, password=None)
    except (ValueError, TypeError):
        raise FileError(f"--tls-key {files.key}: holds no PEM private key without a password") from None
    if private_key.public_key() != public_key:
        raise FileError(f"--tls-key {files.key}: is not the key of --tls-cert {files.cert}")
    return _Pems(cert, key, None if files.client_ca is None else _client_ca(files.client_ca))


def _client_ca(path: Path) -> bytes:
    """Raises: FileError if there is no certificate in it: nobody could connect."""
    content = read_bytes("--tls-client-ca", path)
    try:
        load_pem_x509_certificates(content)
    except ValueError:
        raise FileError(f"--tls-client-ca {path}: holds no PEM certificate") from None
    return content
