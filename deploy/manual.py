"""Write the man page and the shell completions, as the parsers have them: `python deploy/manual.py FOLDER`.

Out: `man/man1/taskgate.1`, `bash-completion/completions/taskgate` and `zsh/site-functions/_taskgate`, below the folder,
as they lie below `share` on a system. Whoever uses them needs no package.
"""

import argparse
import os
import sys
from pathlib import Path

import shtab
from argparse_manpage.manpage import Manpage

from gateway import __main__ as command
from gateway.cli import tasks_command, try_command

_MAN = {"manual_title": "taskgate", "description": "a filtered tasks/list for MCP servers of revision 2025-11-25"}


def whole() -> argparse.ArgumentParser:
    """The parser of `taskgate`, with those of its commands in place of their names."""
    parser = command.flags()
    [commands] = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    commands.choices |= {
        "stdio": command.stdio_flags(),
        "try": try_command.parser(),
        "tasks": tasks_command.parser(),
    }
    for action in (each for one in (parser, *commands.choices.values()) for each in one._actions):
        if action.metavar == "FILE":
            action.complete = shtab.FILE
    return parser


def files(parser: argparse.ArgumentParser) -> dict[str, str]:
    """The texts, by their names below `share`."""
    return {
        "man/man1/taskgate.1": str(Manpage(parser, _data=_MAN)),
        "bash-completion/completions/taskgate": shtab.complete(parser, shell="bash"),
        "zsh/site-functions/_taskgate": shtab.complete(parser, shell="zsh"),
    }


def main() -> None:
    os.environ["COLUMNS"] = "80"
    for name, text in files(whole()).items():
        path = Path(sys.argv[1]) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(path)


if __name__ == "__main__":
    main()
