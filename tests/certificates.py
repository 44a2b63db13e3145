"""Certificates for tests, and their keys, as PEM files."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_DAY = timedelta(days=1)


def signed(
    cert: Path,
    key: Path,
    name: str = "localhost",
    by: "Authority | None" = None,
    days: float = 1,
    begins_days: float = -1,
) -> ec.EllipticCurvePrivateKey:
    """Write a certificate, signed by itself without an authority, and its key, which is returned. Days are from now."""
    own = ec.generate_private_key(ec.SECP256R1())
    issuer, signer = (name, own) if by is None else (by.name, by.key)
    now = datetime.now(UTC)
    made = (  # with all that Python 3.13 wants, which verifies strictly (RFC 5280, 4.2.1)
        x509.CertificateBuilder()
        .subject_name(_named(name))
        .issuer_name(_named(issuer))
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins_days * _DAY)
        .not_valid_after(now + days * _DAY)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(own.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(_usage(by is None), critical=True)
        .sign(signer, hashes.SHA256())
    )
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    key.write_bytes(own.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return own


def _usage(is_ca: bool) -> x509.KeyUsage:
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign")
    none = dict.fromkeys((*others, "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(digital_signature=True, key_cert_sign=is_ca, **none)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


class Authority:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.name = "authority"
        self.ca = str(folder / "authority.pem")
        self.key = signed(folder / "authority.pem", folder / "authority.key", self.name)

    def certificate(self, name: str) -> tuple[str, str]:
        cert, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        signed(cert, key, name, by=self)
        return str(cert), str(key)
