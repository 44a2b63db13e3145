"""The build of Python that is measured: its name, and a warning of one that was not optimized.

A distribution's own interpreter counts as optimized: Debian builds it so (PGO and LTO), though `sysconfig` there
describes another build, that of its library.
"""

import platform
import sys
import sysconfig
from typing import Final

OF_THE_SYSTEM: Final = "/usr"


def built(base: str = sys.base_prefix, options: str | None = None) -> tuple[str, str | None]:
    """What is measured, and what to know of it, if anything. `options` are those of CPython's `configure`."""
    given = str(sysconfig.get_config_var("CONFIG_ARGS")) if options is None else options
    name = f"python {platform.python_version()} ({platform.python_compiler()}) of {base}"
    if base == OF_THE_SYSTEM:
        return f"{name}, the system's", None
    has = [word for word in ("--enable-optimizations", "--with-lto") if word in given]
    if "--enable-optimizations" in has:
        return f"{name}, {' '.join(has)}", None
    return f"{name}, not optimized", (
        "warning: this Python was built without --enable-optimizations, as pyenv builds it by default, and Envoy is an "
        "optimized build. Measure with the system's: make clean, then make bench PYTHON=/usr/bin/python3"
    )
