"""Garbage of the gateway's in reference cycles: it puts off full collections (app.py), so it would keep it for ever."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_garbage() -> Iterator[None]:
    """Nothing is collected but by hand, and what is found is kept to be looked at."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def left_in_cycles() -> list[str]:
    """The classes of what is garbage, by name; none if nothing of it is the gateway's. Within `kept_garbage`."""
    gc.collect()
    found = sorted({f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.garbage})
    return found if any(name.startswith("gateway.") for name in found) else []
