"""Where a configuration comes from: a text, a file, standard input, or the command line's flags."""

import sys
from pathlib import Path
from typing import Any

import msgspec

from gateway.config.settings import Admin, Config, StdioConfig, Upstream, changes, clashes, limits_clashes
from gateway.config.value_readers import read_address, read_url
from gateway.config.yaml_document import ConfigError, Document, quoted


def parse(text: str, source: str, folder: Path | None = None, in_force: Config | None = None) -> Config:
    """The configuration in a YAML text. Raises `ConfigError`, each line of it starting with `source:line: key.path: `.

    File names in it are relative to `folder`, by default the folder of `source`. Each file is read once.
    With `in_force`, the configuration that runs, values that a reload cannot change must be the same.
    """
    document = Document(source, Path(source).parent if folder is None else folder)
    return _checked(document, document.read(Config, text, " with at least the key upstreams"), in_force)


def _checked(document: Document, config: object, in_force: Config | None = None) -> Config:
    """The configuration of a document. Raises ConfigError for all faults, clashes between values included."""
    given = document.given
    document.check([*clashes(config, given), *changes(config, in_force, given)] if isinstance(config, Config) else ())
    assert isinstance(config, Config)
    return config


def load(path: Path, in_force: Config | None = None, folder: Path | None = None) -> Config:
    """The configuration in a file of UTF-8, or on standard input for `-`, as by `parse`. Raises `ConfigError`."""
    source, folder = ("standard input", Path()) if str(path) == "-" else (str(path), folder)
    return parse(_text(path, source), source, folder, in_force)


def _text(path: Path, source: str) -> str:
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
    document = Document(str(path), path.parent)
    value = document.read(StdioConfig, _text(path, str(path)))
    document.check(limits_clashes(value.limits, document.given) if isinstance(value, StdioConfig) else ())
    assert isinstance(value, StdioConfig)
    if value.log.file is None:
        return value
    file = path.parent / value.log.file
    try:
        file.open("ab").close()
    except OSError as error:
        document.expected("a file that can be written", "log.file", f": {error.strerror}")
        document.check()
    return msgspec.structs.replace(value, log=msgspec.structs.replace(value.log, file=str(file)))


def for_upstream(url: str, listen: str | None, admin: str | None) -> Config:
    """The configuration of the flags, with one upstream, named "upstream". Raises `ConfigError`, its lines by flag."""
    document, values = Document("", Path()), dict[str, Any]()
    for name, path, text, read in (
        ("upstream", "upstreams[0].url", url, read_url),
        ("listen", "listen", listen, read_address),
        ("admin", "admin.listen", admin, lambda text: Admin(read_address(text))),
    ):
        if text is not None:
            document.locations[path], document.given[path] = f"--{name}", quoted(text)
            try:
                values[name] = read(text)
            except ValueError as error:
                document.expected(str(error), path)
    document.check()
    server = Upstream(name="upstream", url=values.pop("upstream"))
    return _checked(document, Config(upstreams=(server,), **values))
