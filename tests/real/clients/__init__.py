"""Clients as anybody would write them, each with an SDK's own parts: see `conversation.py` for what they say."""

import sys
from importlib.util import find_spec

if find_spec("sniffio") is None:
    # httpcore tries to import it at every lock, and each time all of sys.path is searched: a fifth of all our time.
    sys.modules["sniffio"] = None  # type: ignore[assignment]
