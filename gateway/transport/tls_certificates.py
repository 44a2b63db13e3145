"""Certificates and keys: the contexts of TLS that they make, what is wrong with them, and when they are valid.

One that is not valid now stops nobody: the gateway starts with it, a reload keeps the one before, and log, page,
metrics and `--check` say so.
"""

import errno
import logging
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from time import time
from typing import Final, NamedTuple

from gateway.config import Config, StartError, Tls, Upstream

_OLDEST: Final = ssl.TLSVersion.TLSv1_2  # Python's own limit, which Debian's leaves to the machine
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
# Validity, the only sequence of two instants: UTCTime or GeneralizedTime, with seconds and Z (RFC 5280, 4.1.2.5).
_VALIDITY: Final = re.compile(rb"\x30.(?:\x17\x0d|\x18\x0f)(\d{12,14})Z(?:\x17\x0d|\x18\x0f)(\d{12,14})Z", re.DOTALL)
_NO_AUTHORITY: Final = (18, 19, 20, 21)  # X509_V_ERR_*: self-signed, or the issuer is not there
_SPANS: Final = ((2 * 86_400, 86_400, "days"), (3600, 3600, "h"), (60, 60, "min"), (0, 1, "s"))

log = logging.getLogger("taskgate")


class Validity(NamedTuple):
    """From when to when a certificate is valid, in seconds since 1970."""

    begins_at: float
    ends_at: float

    def fault(self, upstream: str, now: float) -> str:
        """Why it does not serve now, in words; empty if it does. It is shown to `upstream`; the listener's if empty."""
        hit = f"{upstream} may refuse it" if upstream else "clients cannot connect"
        if now >= self.ends_at:
            return f"EXPIRED {span(now - self.ends_at)} ago: {hit}"
        return f"NOT YET VALID for {span(self.begins_at - now)}: {hit}" if now < self.begins_at else ""


def span(seconds: float) -> str:
    """A time in its largest unit."""
    return next(f"{seconds / size:.0f} {unit}" for least, size, unit in _SPANS if seconds >= least)


def upstream_context(config: Upstream, kept: ssl.SSLContext | None = None) -> ssl.SSLContext | None:
    """The context for an https upstream, else None; `kept` has a certificate that stays. Raises OSError."""
    if config.url.scheme != "https":
        return None
    try:
        context = ssl.create_default_context(cafile=config.tls.ca) if kept is None else kept
        if kept is not None and config.tls.ca is not None:
            kept.load_verify_locations(config.tls.ca)
        elif kept is not None:
            kept.load_default_certs()
    except OSError as error:
        raise OSError(unusable(error, ca=config.tls.ca)) from None
    context.minimum_version = _OLDEST
    if config.tls.certificate is not None and kept is None:
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


def unreachable(error: OSError, ca: str) -> str:
    """In words, why there is no connection; `ca` is the key of the authority. TLS has words and no numbers."""
    if not isinstance(error, ssl.SSLError):
        known = error.errno in errno.errorcode  # asyncio writes words of its own
        return os.strerror(error.errno or 0) if known else error.strerror or str(error)
    if not isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: {(error.reason or str(error)).replace('_', ' ').lower()}; does it speak http?"
    hint = f"; {ca} names its authority" if error.verify_code in _NO_AUTHORITY else ""
    return f"TLS: its certificate is not trusted: {error.verify_message}{hint}"


def listener_context(tls: Tls) -> ssl.SSLContext:
    """The context of the listener's certificate and key. Raises StartError."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = _OLDEST
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


def check_valid(config: Config) -> None:
    """Raise StartError unless every certificate of the configuration is valid now."""
    now = time()
    faults = [
        f"{key}: {file}: {fault}; renew it" for key, name, file, v in _read(config) if (fault := v.fault(name, now))
    ]
    if faults:
        raise StartError("\n".join(faults))


def taken(config: Config, before: Mapping[str, Validity]) -> tuple[dict[str, Validity], set[str]]:
    """The certificates in use from now on, by name (the listener's: ""), and the names of those that stay."""
    now, found, kept = time(), {name: validity for _, name, _, validity in _read(config)}, set()
    for name, validity in found.items():
        if fault := validity.fault(name, now):
            if stays := name in before and not before[name].fault(name, now):
                kept.add(name)
            why = fault.partition(":")[0] + ", and the one before stays in use" if stays else fault
            log.error("a certificate is not valid", extra={"upstream": name, "why": why})
    return found | {name: before[name] for name in kept}, kept


def _read(config: Config) -> Iterator[tuple[str, str, Path, Validity]]:
    """The certificates of a configuration: the key, the upstream's name or "", the file, and when it is valid."""
    named: list[tuple[str, str, Path | None]] = [("tls", "", config.tls.certificate)] if config.tls is not None else []
    named += [(f"upstreams[{at}].tls", u.name, u.tls.certificate) for at, u in enumerate(config.upstreams)]
    for key, name, file in named:
        if file is not None:
            with suppress(OSError, ValueError):  # ssl reads more forms than this does
                yield f"{key}.certificate", name, file, validity(file)


def validity(file: Path) -> Validity:
    """When the first certificate of a file is valid. Raises OSError or ValueError."""
    _, begin, rest = file.read_text("ascii", "replace").partition(_BEGIN)
    found = _VALIDITY.search(ssl.PEM_cert_to_DER_cert(begin + rest.partition(_END)[0] + _END))
    if found is None:
        raise ValueError(f"{file}: no instants of a certificate in it")
    centuries = ("" if len(text) > len("YYMMDDHHMMSS") else "19" if text >= b"5" else "20" for text in found.groups())
    instants = [f"{century}{text.decode()}+0000" for century, text in zip(centuries, found.groups(), strict=True)]
    return Validity(*(datetime.strptime(instant, "%Y%m%d%H%M%S%z").timestamp() for instant in instants))
