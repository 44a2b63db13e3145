"""Flags of the command line, and commands: for one that does not exist the error names one that is spelled alike."""

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any, NoReturn


def say(text: str) -> None:
    """Print, if anybody reads it. Ends the process, with status 2 and one line, if standard output takes nothing."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        pass
    except OSError as error:
        with suppress(OSError):
            print(f"taskgate: standard output cannot be written: {error.strerror}", file=sys.stderr)
        raise SystemExit(2) from None


class Flags(argparse.ArgumentParser):
    """A parser whose errors name the nearest flag, or command."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """The flags, and what is left over. Ends the process for a flag that does not exist."""
        flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", self.format_help()))
        for argument in takewhile(lambda argument: argument != "--", args or ()):
            flag = argument.partition("=")[0]
            if flag.startswith("--") and flag not in flags:
                self._unknown("flag", flag, flags)
        return super().parse_known_args(args, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        is_command = action.dest == "command"
        if is_command and re.search("[:/]", value):
            url = value if "://" in value else f"http://{value}"
            self.error(f"unknown command {value}: did you mean --upstream {url}, or taskgate try {url}?")
        self._unknown("command" if is_command else action.option_strings[0], value, action.choices)

    def _unknown(self, what: str, given: str, known: Iterable[str]) -> NoReturn:
        import difflib  # the server of stdio waits for what is imported before it

        near = difflib.get_close_matches(given.lower(), known, 1)
        there_is = "--help lists what there is" if what in ("flag", "command") else f"one of {', '.join(known)}"
        self.error(f"unknown {what} {given}: " + (f"did you mean {near[0]}?" if near else there_is))

    def error(self, message: str) -> NoReturn:
        """End the process with one line: the usage above it would hide it."""
        self.exit(2, f"{self.prog}: {message}\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is sys.stdout:
            say(message)
        else:
            with suppress(OSError):  # nobody reads it; Debian 12's Python ended with another status
                super()._print_message(message, file)
