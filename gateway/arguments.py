"""Flags of the command line: one that does not exist ends the process; the error names one that is spelled alike."""

import argparse
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

_FLAG: Final = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


class Flags(argparse.ArgumentParser):
    """A parser whose errors name the nearest flag."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """The flags, and what is left over. Ends the process for a flag that does not exist."""
        flags = set(_FLAG.findall(self.format_help()))
        for argument in args or ():
            flag = argument.partition("=")[0]
            if flag == "--":
                break
            if flag.startswith("--") and not any(one.startswith(flag) for one in flags):
                import difflib  # the server of stdio waits for what is imported before it

                near = difflib.get_close_matches(flag, flags, 1)
                self.error(f"unknown flag {flag}" + (f": did you mean {near[0]}?" if near else "; --help lists them"))
        return super().parse_known_args(args, namespace)

    def _print_message(self, message: str, file: Any = None) -> None:
        with suppress(OSError):  # nobody reads it; Debian 12's Python ended with another status
            super()._print_message(message, file)
