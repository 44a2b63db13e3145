"""Certificates and keys: the contexts of TLS that they make, what is wrong with them, and when they end.

In: PEM files, as `tls` of the configuration names them. Out: contexts; the instant at which the first certificate of a
file ends. Always: an error names the file to blame. A file whose end cannot be read here is left out, since ssl, which
the certificate is for, has accepted it.
"""

import re
import ssl
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gateway.config import Config, StartError, Tls, Upstream

_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
# Validity, the only sequence of two instants: UTCTime or GeneralizedTime, with seconds and Z (RFC 5280, 4.1.2.5).
_VALIDITY: Final = re.compile(rb"\x30.(?:\x17\x0d|\x18\x0f)\d{12,14}Z(?:\x17\x0d|\x18\x0f)(\d{12,14})Z", re.DOTALL)


def upstream_context(config: Upstream) -> ssl.SSLContext | None:
    """The context for an https upstream, else None. Raises OSError, such as ssl.SSLError, if a file cannot be used."""
    if config.url.scheme != "https":
        return None
    try:
        context = ssl.create_default_context(cafile=config.tls.ca)
    except OSError as error:
        raise OSError(unusable(error, ca=config.tls.ca)) from None
    if config.tls.certificate is not None:
        _load(context, config.tls.certificate, config.tls.key)
    return context


def _load(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    """Give a context its certificate. Raises OSError, whose words name the file to blame."""
    try:
        context.load_cert_chain(certificate, key, password="")  # else a terminal would be asked for one
    except OSError as error:
        raise OSError(unusable(error, certificate=certificate, key=key)) from None


def unusable(error: OSError, **files: Path | None) -> str:
    """In words, which of these files cannot be used, and why."""
    for name, file in files.items():
        try:
            text = file.read_bytes() if file is not None else b"-----BEGIN CERTIFICATE, PRIVATE KEY-----"
        except OSError as unread:
            return f"{name} cannot be used: {file}: {unread.strerror}"
        if name == "key" and b"ENCRYPTED" in text:
            return f"{name} cannot be used: {file} is encrypted, and nobody is asked for its passphrase"
        what = "PRIVATE KEY-----" if name == "key" else "-----BEGIN CERTIFICATE"
        if what.encode() not in text:
            return f"{name} cannot be used: {file} has no PEM block with {what}"
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return f"key cannot be used: {files.get('key')} is not that of the certificate in {files.get('certificate')}"
    return f"{' and '.join(files)} cannot be used: {', '.join(map(str, files.values()))}: {error}"


def listener_context(tls: Tls) -> ssl.SSLContext:
    """The context of the listener's certificate and key. Raises StartError."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        _load(context, tls.certificate, tls.key)
    except OSError as error:
        raise StartError(f"tls.{error}") from None
    return context


def check(config: Config) -> None:
    """Raise StartError unless every certificate and key of the configuration can be used."""
    if config.tls is not None:
        listener_context(config.tls)
    for at, upstream in enumerate(config.upstreams):
        try:
            upstream_context(upstream)
        except OSError as error:
            raise StartError(f"upstreams[{at}].tls.{error}") from None


def ends_at(file: Path) -> float:
    """When the first certificate of a file ends, in seconds since 1970. Raises OSError or ValueError."""
    _, begin, rest = file.read_text("ascii", "replace").partition(_BEGIN)
    found = _VALIDITY.search(ssl.PEM_cert_to_DER_cert(begin + rest.partition(_END)[0] + _END))
    if found is None:
        raise ValueError(f"{file}: no end of a certificate in it")
    text = found[1].decode()
    if len(text) == len("YYMMDDHHMMSS"):
        text = ("19" if text >= "5" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp()


def all_ends(config: Config) -> dict[str, float]:
    """When the certificates of a configuration end: those shown to upstreams by name, the listener's under ""."""
    shown = [(u.name, u.tls.certificate) for u in config.upstreams]
    if config.tls is not None:
        shown.append(("", config.tls.certificate))
    ends = {}
    for name, file in shown:
        if file is not None:
            with suppress(OSError, ValueError):  # ssl reads more forms than this does
                ends[name] = ends_at(file)
    return ends
