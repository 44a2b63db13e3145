"""Flags of the command line: what each is near to if it is misspelt, and the variables that stand for some.

In: arguments, the environment. Out: parsed arguments. Always: a flag overrides its variable; an empty one is none.
"""

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

VARIABLES: Final = {
    "config": "TASKGATE_CONFIG",
    "upstream": "TASKGATE_UPSTREAM",
    "listen": "TASKGATE_LISTEN",
    "admin": "TASKGATE_ADMIN",
}
_FLAG: Final = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


class Flags(argparse.ArgumentParser):
    """A parser whose errors name the nearest flag."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """The flags, and what is left over. Ends the process for a flag that does not exist."""
        known = set(_FLAG.findall(self.format_help()))
        for argument in args or ():
            flag = argument.partition("=")[0]
            if flag == "--":
                break
            if flag.startswith("--") and not any(one.startswith(flag) for one in known):
                import difflib  # the server of stdio waits for what is imported before it

                near = difflib.get_close_matches(flag, known, 1)
                self.error(f"unknown flag {flag}" + (f": did you mean {near[0]}?" if near else "; --help lists them"))
        return super().parse_known_args(args, namespace)


def from_environment(given: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Fill in the flags that were not given from their variables. Returns how each of them was given, by its name."""
    names = {}
    for name, variable in VARIABLES.items():
        names[name] = f"--{name}"
        if getattr(given, name) is None and (value := environment.get(variable)):
            setattr(given, name, value)
            names[name] = variable
    return names
