"""Certificates for tests.

In: a name, and who signs. Out: files of a certificate and of its key, both PEM. Always: a certificate that signs itself
is its own authority.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_DAY = timedelta(days=1)


def signed(
    cert: Path, key: Path, name: str = "localhost", by: "Authority | None" = None, days: int = 1
) -> ec.EllipticCurvePrivateKey:
    """Write a certificate for a name, and its key; without an authority it signs itself. Returns the key."""
    own = ec.generate_private_key(ec.SECP256R1())
    issuer, signer = (name, own) if by is None else (by.name, by.key)
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(_named(name))
        .issuer_name(_named(issuer))
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + days * _DAY)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        .sign(signer, hashes.SHA256())
    )
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    key.write_bytes(own.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return own


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


class Authority:
    """Signs certificates; its own is `ca`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.name = "authority"
        self.ca = str(folder / "authority.pem")
        self.key = signed(folder / "authority.pem", folder / "authority.key", self.name)

    def certificate(self, name: str) -> tuple[str, str]:
        """The files of a certificate for a name, and of its key."""
        cert, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        signed(cert, key, name, by=self)
        return str(cert), str(key)
