"""Certificates and keys: the contexts of TLS that they make, what is wrong with them, and when they are valid.

In: a configuration, whose files were read once. Out: contexts, made anew for each; nothing is read again, and of the
one before only the bytes of a certificate are kept. One that is not valid now stops nobody: the gateway starts with it,
a reload keeps the one before, and log, page, metrics and `--check` say so.
"""

import errno
import logging
import os
import re
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from tempfile import NamedTemporaryFile
from time import time
from typing import Final, NamedTuple

import msgspec

from gateway.config import Config, ConfigError, NamedFile, Tls, Upstream, UpstreamTls

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


def upstream_context(config: Upstream) -> ssl.SSLContext | None:
    """The context for an https upstream, else None. Raises OSError, whose words name the file to blame."""
    if config.url.scheme != "https":
        return None
    context = trusting(config.tls.ca)
    context.minimum_version = _OLDEST
    if config.tls.certificate is not None:
        _load(context, config.tls.certificate, config.tls.key)
    return context


def trusting(ca: NamedFile | None) -> ssl.SSLContext:
    """A context for servers whose authority is in `ca`; None: those of the system. Raises OSError, as above."""
    if ca is None:
        return ssl.create_default_context()
    try:
        with _name_of(ca) as name:
            return ssl.create_default_context(cafile=name)
    except OSError as error:
        raise OSError(unusable(error, ca=ca)) from None


def _load(context: ssl.SSLContext, certificate: NamedFile, key: NamedFile | None) -> None:
    """Give a context its certificate. Raises OSError, whose words name the file to blame."""
    try:
        with _name_of(certificate) as chain, _name_of(key or certificate) as secret:
            context.load_cert_chain(chain, secret, password="")  # else a terminal would be asked for one
    except OSError as error:
        raise OSError(unusable(error, certificate=certificate, key=key)) from None


@contextmanager
def _name_of(file: NamedFile) -> Iterator[str]:
    """A name under which OpenSSL, which takes no bytes, finds what was read of a file."""
    on_linux = sys.platform == "linux"  # in memory: a key is written to no disk
    with os.fdopen(os.memfd_create("pem"), "wb") if on_linux else NamedTemporaryFile() as copy:
        copy.write(file.data)
        copy.flush()
        yield f"/proc/self/fd/{copy.fileno()}" if on_linux else str(copy.name)


def unusable(error: OSError, **files: NamedFile | None) -> str:
    """In words, which of these files cannot be used, and why."""
    for name, file in files.items():
        text = b"-----BEGIN CERTIFICATE, PRIVATE KEY-----" if file is None else file.data
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
        if isinstance(error, socket.gaierror):
            return f"{error.strerror}; is the name right?"
        known = error.errno in errno.errorcode  # asyncio writes words of its own
        return os.strerror(error.errno or 0) if known else error.strerror or str(error)
    if not isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: {(error.reason or str(error)).replace('_', ' ').lower()}; does it speak http?"
    hint = f"; {ca} names its authority" if error.verify_code in _NO_AUTHORITY else ""
    return f"TLS: its certificate is not trusted: {error.verify_message}{hint}"


def listener_context(tls: Tls) -> ssl.SSLContext:
    """The context of the listener's certificate and key. Raises OSError, whose words name the file to blame."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = _OLDEST
    context.set_alpn_protocols(["http/1.1"])
    _load(context, tls.certificate, tls.key)
    return context


def check_valid(config: Config) -> None:
    """Raise ConfigError unless every certificate of the configuration is valid now."""
    now, valid = time(), validities(config)
    keys = {"": "tls", **{upstream.name: f"upstreams[{at}].tls" for at, upstream in enumerate(config.upstreams)}}
    faults = [
        f"{keys[name]}.certificate: {tls.certificate}: {fault}; renew it"
        for name, tls in _sections(config).items()
        if name in valid and (fault := valid[name].fault(name, now))
    ]
    if faults:
        raise ConfigError(*faults)


def chosen(config: Config, before: Config) -> Config:
    """The configuration, but with a certificate and key of the one before in place of any that is not valid now."""
    old, new = _sections(before), _sections(config)
    chosen = {name: _chosen(name, tls, old.get(name)) for name, tls in new.items()}
    upstreams = tuple(msgspec.structs.replace(u, tls=chosen[u.name]) for u in config.upstreams)
    return msgspec.structs.replace(config, tls=chosen.get(""), upstreams=upstreams)


def _chosen(name: str, tls: Tls | UpstreamTls, before: Tls | UpstreamTls | None) -> Tls | UpstreamTls:
    now, valid = time(), validity(tls.certificate)
    if valid is None or not (fault := valid.fault(name, now)):
        return tls
    old = None if before is None else validity(before.certificate)
    if before is not None and old is not None and not old.fault(name, now):
        tls = msgspec.structs.replace(tls, certificate=before.certificate, key=before.key)
        fault = f"{fault.partition(':')[0]}, and the one before stays in use"
    log.error("a certificate is not valid", extra={"upstream": name, "why": fault})
    return tls


def validities(config: Config) -> dict[str, Validity]:
    """When each certificate is valid, by the name of the upstream that it is shown to (the listener's: "")."""
    found = {name: validity(tls.certificate) for name, tls in _sections(config).items()}
    return {name: valid for name, valid in found.items() if valid is not None}


def _sections(config: Config) -> dict[str, Tls | UpstreamTls]:
    """Where certificates may stand, by the upstream's name or ""."""
    own = {} if config.tls is None else {"": config.tls}
    return {**own, **{upstream.name: upstream.tls for upstream in config.upstreams}}


def validity(file: NamedFile | None) -> Validity | None:
    """When the first certificate of a file is valid; None if that cannot be told: ssl reads more than this does."""
    _, begin, rest = (b"" if file is None else file.data).decode("ascii", "replace").partition(_BEGIN)
    try:
        found = _VALIDITY.search(ssl.PEM_cert_to_DER_cert(begin + rest.partition(_END)[0] + _END))
        if found is None:
            return None
        said = found.groups()
        centuries = ("" if len(text) > len("YYMMDDHHMMSS") else "19" if text >= b"5" else "20" for text in said)
        instants = [f"{century}{text.decode()}+0000" for century, text in zip(centuries, said, strict=True)]
        return Validity(*(datetime.strptime(instant, "%Y%m%d%H%M%S%z").timestamp() for instant in instants))
    except ValueError:
        return None
