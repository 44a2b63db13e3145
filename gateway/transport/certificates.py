"""When certificates end.

In: a PEM file, as `tls.certificate` names one. Out: the instant at which its first certificate ends. Always: a file
that cannot be read here is left out, since ssl, which the certificate is for, has accepted it.
"""

import re
import ssl
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gateway.config import Config

_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
# Validity, the only sequence of two instants: UTCTime or GeneralizedTime, with seconds and Z (RFC 5280, 4.1.2.5).
_VALIDITY: Final = re.compile(rb"\x30.(?:\x17\x0d|\x18\x0f)\d{12,14}Z(?:\x17\x0d|\x18\x0f)(\d{12,14})Z", re.DOTALL)


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
    return dict(_ends(config))


def _ends(config: Config) -> Iterator[tuple[str, float]]:
    shown = [(u.name, u.tls.certificate) for u in config.upstreams]
    if config.tls is not None:
        shown.append(("", config.tls.certificate))
    for name, file in shown:
        if file is not None:
            with suppress(OSError, ValueError):  # ssl reads more forms than this does
                yield name, ends_at(file)
