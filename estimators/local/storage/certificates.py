"""Certificates for SeaweedFS's components, so that they talk only to programs with the one key made here.

SeaweedFS's gRPC asks for no credentials of its own. With these files every connection, in either direction, is TLS with
a certificate of one authority. The authority signs once, for this server, and its key is not stored.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

from estimators.local.errors import INSTALL, LocalPlatformError

_COMPONENTS = ("master", "volume", "filer", "s3", "admin", "worker", "client", "msg_broker", "msg_agent")
"""Components that read a certificate of their own from security.toml."""
_AUTHORITY = "smddp-authority"
_LIFETIME = timedelta(days=3650)  # longer than a platform runs
_CLOCK_SKEW = timedelta(days=1)


def write_certificates(directory: Path) -> None:
    """Write the authority's certificate, a signed certificate with its key, and the security.toml that names them.

    SeaweedFS runs in ``directory``, and looks for security.toml there; nobody else may read it.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
        from cryptography.x509.oid import NameOID
    except ModuleNotFoundError as error:
        raise LocalPlatformError(f"The module {error.name!r} is missing. {INSTALL}") from error

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def certificate(subject: str, key: ec.EllipticCurvePrivateKey, *, authority: bool) -> bytes:
        now = datetime.now(timezone.utc)
        return (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name(_AUTHORITY))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(now + _LIFETIME)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .sign(signing_key, hashes.SHA256())
            .public_bytes(Encoding.PEM)
        )

    signing_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    (directory / "authority.crt").write_bytes(certificate(_AUTHORITY, signing_key, authority=True))
    (directory / "component.crt").write_bytes(certificate("smddp-component", key, authority=False))
    (directory / "component.key").touch(mode=0o600)
    (directory / "component.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    sections = (f'[grpc.{name}]\ncert = "component.crt"\nkey = "component.key"\n' for name in _COMPONENTS)
    (directory / "security.toml").write_text('[grpc]\nca = "authority.crt"\n' + "".join(sections))
