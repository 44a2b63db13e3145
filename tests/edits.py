"""One small change of the gateway's source, on purpose: a test that cannot fail proves nothing."""

import inspect
import sys
import textwrap
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch


def edited(where: object, name: str, *changes: tuple[str, str]) -> AbstractContextManager[Any]:
    """The function of that name, in a class or in a module that uses it, with some text changed."""
    function = getattr(where, name)
    text = textwrap.dedent(inspect.getsource(function))
    for old, new in changes:
        assert text.count(old) == 1, f"{name} has {old!r} {text.count(old)} times"
        text = text.replace(old, new)
    made: dict[str, Any] = {}
    exec(compile(text, inspect.getfile(function), "exec"), vars(sys.modules[function.__module__]), made)
    return patch.object(where, name, made[function.__name__])
