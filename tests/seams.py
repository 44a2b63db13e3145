"""Where wilful faults are put in: a class, a method or a function by its name alone, wherever it stands in gateway/."""

import importlib
import pkgutil
import sys
from functools import cache
from typing import Any

import pytest

import gateway


@cache
def _modules() -> list[dict[str, Any]]:
    for module in pkgutil.walk_packages(gateway.__path__, "gateway."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return [vars(module) for name, module in sys.modules.items() if name.startswith("gateway")]


def named(name: str) -> Any:
    """The class or function of that name in gateway/. Raises LookupError if there is none, or more than one."""
    found = {id(names[name]): names[name] for names in _modules() if name in names}
    if len(found) != 1:
        raise LookupError(f"a wilful fault has lost its place: gateway/ has {len(found)} things called {name}")
    return next(iter(found.values()))


def put_in(patch: pytest.MonkeyPatch, name: str, fault: object) -> None:
    """Put a fault in the place of a method ("Class.method"), or of a function wherever it is used."""
    owner, _, method = name.rpartition(".")
    if owner and not hasattr(named(owner), method):
        raise LookupError(f"a wilful fault has lost its place: {owner} has no {method}")
    if owner:
        patch.setattr(named(owner), method, fault)
        return
    right = named(name)
    for names in _modules():
        if names.get(name) is right:
            patch.setitem(names, name, fault)
