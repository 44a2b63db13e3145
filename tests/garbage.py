"""What is left in cycles of references: the gateway puts full collections off (app.py), so it would be kept for ever.

In: what is done while nothing is collected. Out: the classes of the gateway's that only a collection would free.
Always: objects of other packages that hold one another are none of the gateway's business, unless they hold its own.
"""

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
    """The classes of what is garbage, by name; none if nothing of it is the gateway's.

    For use within `kept_garbage`.
    """
    gc.collect()
    found = sorted({f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.garbage})
    return found if any(name.startswith("gateway.") for name in found) else []
