"""Where a configuration comes from: a text, a file, standard input, or the command line's flags.

In: the source. Out: the configuration, or one `ConfigError`. Always: the only I/O is to read the file, and to check
that the files that it names can be read, or written.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from gateway.config.clashes import limits_clashes
from gateway.config.document import ConfigError, Document, quoted
from gateway.config.model import Admin, Config, StdioConfig, Upstream
from gateway.config.values import Address, read_address, read_url


def parse(
    text: str, source: str, folder: Path | None = None, in_force: Config | None = None, opens: bool = False
) -> Config:
    """The configuration in a YAML text. Raises `ConfigError`, each line of it starting with `source:line: key.path: `.

    File names in it are relative to `folder`, by default the folder of `source`. With `opens` files must be readable.
    With `in_force`, the configuration that runs, values that a reload cannot change must be the same.
    """
    document = Document(source, Path(source).parent if folder is None else folder, opens)
    root = document.compose(text, " with at least the key upstreams")
    return document.config(document.value(Config, root, "", root.start_mark.line + 1), in_force)


def load(path: Path, in_force: Config | None = None, folder: Path | None = None) -> Config:
    """The configuration in a file of UTF-8, or on standard input if the path is `-`. The rest is as for `parse`.

    Raises `ConfigError`, also if the file cannot be read.
    """
    source, folder = ("standard input", Path()) if str(path) == "-" else (str(path), folder)
    return parse(_text(path, source), source, folder, in_force, opens=True)


def _text(path: Path, source: str) -> str:
    """The text of a file, or of standard input. Raises ConfigError."""
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        return data.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{source}:{line}: expected UTF-8; given the byte {data[error.start]:#x}") from error


def load_stdio(path: Path) -> StdioConfig:
    """The configuration in a file, for a server on stdio. `log.file` is relative to its folder. Raises ConfigError."""
    document = Document(str(path), path.parent, opens=True)
    root = document.compose(_text(path, str(path)))
    value = document.value(StdioConfig, root, "", root.start_mark.line + 1)
    document.check(limits_clashes(value.limits, document.given) if isinstance(value, StdioConfig) else ())
    assert isinstance(value, StdioConfig)
    if value.log.file is None:
        return value
    file = path.parent / value.log.file
    try:
        file.open("ab").close()
    except OSError as error:
        given = document.given["log.file"]
        problem = f"expected a file that can be written; given {given}: {error.strerror}"
        document.check([(("log.file",), problem)])
    return msgspec.structs.replace(value, log=msgspec.structs.replace(value.log, file=str(file)))


def admin_address(text: str) -> Address:
    """The address that the flag --admin names. Raises ConfigError."""
    try:
        return read_address(text)
    except ValueError as error:
        raise ConfigError(f"--admin: expected {error}; given {quoted(text)}") from None


def for_upstream(url: str, listen: str | None, admin: str | None) -> Config:
    """The configuration of the flags --upstream, --listen and --admin: one upstream, named "upstream".

    None stands for the default. Raises `ConfigError`, each line of it starting with the flag.
    """
    document = Document("", Path(), opens=False)

    def read(flag: str, text: str, path: str, reader: Callable[[str], Any]) -> Any:
        document.places[path], document.given[path] = flag, quoted(text)
        try:
            return reader(text)
        except ValueError as error:
            return document.fault(flag, f"expected {error}; given {quoted(text)}")

    values: dict[str, Any] = {}
    server = read("--upstream", url, "upstreams[0].url", read_url)
    if listen is not None:
        values["listen"] = read("--listen", listen, "listen", read_address)
    if admin is not None:
        values["admin"] = Admin(listen=read("--admin", admin, "admin.listen", read_address))
    if document.faults:
        raise ConfigError(*document.faults)
    return document.config(Config(upstreams=(Upstream(name="upstream", url=server),), **values))
