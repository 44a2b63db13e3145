"""What `make bench` says of the Python that it measures."""

from tests.bench.python import built


def test_a_build_without_optimization_is_warned_of() -> None:
    """pyenv's default build takes 1.1 times the CPU of Debian's."""
    name, warning = built("/opt/pyenv/3.11.7", "'--enable-shared' '--prefix=/opt/pyenv/3.11.7'")
    assert name.endswith("of /opt/pyenv/3.11.7, not optimized")
    assert warning is not None and "--enable-optimizations" in warning


def test_an_optimized_build_is_named() -> None:
    name, warning = built("/opt/python", "'--enable-optimizations' '--with-lto'")
    assert name.endswith("of /opt/python, --enable-optimizations --with-lto")
    assert warning is None
    assert built("/usr", "")[1] is None, "Debian's own is, though its sysconfig does not say so"
