"""A YAML document on its way to a configuration. All faults are told at once, none with a value of the environment."""

import difflib
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, NoReturn, TypeVar, get_args, get_origin

import msgspec
import yaml

from gateway.config.settings import Admin, Clash, Config, StdioConfig, Upstream, clashes
from gateway.config.value_readers import NamedFile, read_address, read_url

VALUES_MAX: Final = 10_000  # aliases can make billions of values from a few lines
GIVEN_CHARS_MAX: Final = 80  # of a value that an error repeats
_VARIABLE: Final = re.compile(r"\$\{(?:(?:([A-Za-z_][A-Za-z0-9_]*)(:-[^}]*)?|file:([^}]+))\})?")
_YAML_FAULTS: Final = {
    "mapping values are not allowed": "a value has `: ` in it and no quotes, or the line is indented too far",
    "character '\\t'": "a tab stands where YAML wants spaces: indent with spaces",
    "that cannot start any token": "a value begins with a sign that YAML keeps for itself: put it in quotes",
    "expected <block end>": "the line is not indented as its neighbours are",
    "could not find expected ':'": "a key has no `:` behind it, or the line is not indented as its neighbours are",
    "expected ',' or": "a [ or { is not closed",
    "expected the node content": "a [ or { is not closed, or a value is missing",
    "unexpected end of stream": "a quote is not closed",
}
"""Parts of what the YAML parser says, and words for them."""

_C = TypeVar("_C", Config, StdioConfig)
_FAULTY: Final = object()  # stands for a value with a fault; the fault is noted


class ConfigError(Exception):
    """The configuration cannot be used. Each of `args` is one fault, for an operator to read, on one line."""

    status = 2  # of the process

    def __str__(self) -> str:
        return "\n".join(self.args)


class StartError(Exception):
    """The gateway cannot start with this configuration on this machine."""

    status = 1


class Document:
    def __init__(self, source: str, folder: Path) -> None:
        self.source, self.folder = source, folder
        self._files: dict[Path, NamedFile] = {}  # each is read once
        self.locations: dict[str, str] = {}  # of each value, by its path
        self.given: dict[str, str] = {}  # how it was given
        self.faults: list[str] = []

    def location(self, line: int, path: str = "") -> str:
        return f"{self.source}:{line}: {path}".removesuffix(": ")

    def fault(self, location: str, problem: str) -> object:
        text = f"{location}: {problem}"
        self.faults.append(text if text.isprintable() else repr(text)[1:-1])
        return _FAULTY

    def expected(self, allowed: str, path: str, why: str = "") -> object:
        return self.fault(self.locations[path], f"expected {allowed}; given {self.given[path]}{why}")

    def fail(self, location: str, problem: str) -> NoReturn:
        self.fault(location, problem)
        raise ConfigError(*self.faults)

    def read(self, kind: Any, text: str) -> object:
        """The struct of type `kind` in a YAML text; `_FAULTY` if it has a fault."""
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except (RecursionError, yaml.YAMLError, ValueError, OverflowError) as error:  # a ValueError: "\\UFFFFFFFF"
            mark = getattr(error, "problem_mark", None)
            line = mark.line if mark else text.count("\n", 0, getattr(error, "position", 0))
            problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
            problem = "nested too deeply" if isinstance(error, RecursionError) else problem
            words = [f"{words} (" for part, words in _YAML_FAULTS.items() if part in problem]
            self.fail(self.location(line + 1), f"not YAML: {''.join(words[:1])}{problem}{')' if words else ''}")
        if root is None or root.value == "":
            least = " with at least the key upstreams" * (kind is Config)
            self.fail(self.location(1), f"the file is empty; expected a mapping{least}")
        return self.value(kind, root, "", root.start_mark.line + 1)

    def value(self, kind: Any, node: yaml.Node, path: str, line: int) -> object:
        """The value of a field of type `kind`, where aliases end too; `_FAULTY` if it has a fault, which is noted."""
        location = self.location(line, path)
        self.locations[path], self.given[path] = location, _given(node)
        if len(self.locations) > VALUES_MAX:
            self.fail(location, f"more than {VALUES_MAX} values, those of aliases counted each time")
        if node.tag not in yaml.SafeLoader.yaml_constructors:
            return self.fault(location, f"expected no tag; given the tag {node.tag}")
        kind, reader, nullable, least = _parts(kind)
        if nullable and isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null"):
            return None
        if reader is not None:
            found = self.scalar(reader, node, path, nullable)
            if kind in (NamedFile, Path) and isinstance(found, str):
                try:
                    return self.read_file(found) if kind is NamedFile else self.writable(found)
                except (OSError, ValueError) as error:
                    can = "read" if kind is NamedFile else "written"
                    return self.expected(f"a file that can be {can}", path, f": {_why(error)}")
            return found
        if get_origin(kind) is tuple:
            return self.sequence(get_args(kind)[0], node, path, least)
        if not isinstance(node, yaml.MappingNode):
            return self.expected("a mapping", path)
        return self.mapping(kind, node, path)

    def sequence(self, kind: Any, node: yaml.Node, path: str, least: bool) -> object:
        if not isinstance(node, yaml.SequenceNode) or (least and not node.value):
            return self.expected(f"a list{' of at least one' * least}", path)
        lines = [item.start_mark.line + 1 for item in node.value]
        items = [self.value(kind, item, f"{path}[{at}]", lines[at]) for at, item in enumerate(node.value)]
        return _FAULTY if _FAULTY in items else tuple(items)

    def mapping(self, kind: Any, node: yaml.MappingNode, path: str) -> object:
        fields = {field.name: field for field in msgspec.structs.fields(kind)}
        lines, values = dict[str, int](), dict[str, Any]()
        for key_node, value_node in node.value:
            key, line = key_node.value, key_node.start_mark.line + 1
            inner = f"{path}.{key}".removeprefix(".")
            if not isinstance(key_node, yaml.ScalarNode):
                self.fault(self.location(line, path), f"expected text as a key; given {_given(key_node)}")
            elif key in lines:
                self.fault(self.location(line, inner), f"given twice, first in line {lines[key]}")
            elif key not in fields:
                near = difflib.get_close_matches(key, fields, 1)
                words = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(fields)}"
                self.fault(self.location(line, inner), f"unknown key; {words}")
            else:
                lines[key] = line
                values[key] = self.value(fields[key].type, value_node, inner, line)
        missing = [name for name, field in fields.items() if field.required and name not in values]
        for name in missing:
            self.fault(self.locations[path], f"the required key {name} is missing")
        read = {name: value for name, value in values.items() if value is not _FAULTY}
        if kind is Config:
            return Config(**{"upstreams": (), **read})  # for `clashes`, which tells its faults beside those so far
        return kind(**read) if len(read) == len(values) and not missing else _FAULTY

    def scalar(self, reader: Callable[[object], object], node: yaml.Node, path: str, nullable: bool) -> object:
        """A scalar, by its reader. Text with variables is read as text; if that fails, as YAML would read it."""
        tries, allowed = [_constructed(node)], ""
        if isinstance(node, yaml.ScalarNode) and "${" in node.value:
            if (text := self.expanded(node.value, path)) is None:
                return _FAULTY
            tag = yaml.SafeLoader("").resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
            tries = [text, _constructed(yaml.ScalarNode(tag, text))]
        for value in tries:
            if value is None and nullable:
                return None
            try:
                return reader(value)
            except ValueError as error:
                allowed = str(error)
        return self.expected(allowed, path)

    def writable(self, name: str) -> Path:
        """A file to be written. Makes none: the rest may be wrong. Raises OSError or ValueError."""
        file = self.folder / name
        if file.exists():
            file.open("ab").close()
        else:
            file.parent.stat()
        return file

    def read_file(self, name: str) -> NamedFile:
        """A file in the folder of the document, as it was read first. Raises OSError or ValueError."""
        file = self.folder / name
        if file not in self._files:
            self._files[file] = NamedFile.read(file)
        return self._files[file]

    def expanded(self, text: str, path: str) -> str | None:
        """Text with the values of its variables. None if one has no value; that fault is noted."""
        before = len(self.faults)

        def value_of(found: re.Match[str]) -> str:
            name, default, file = found.groups()
            if file is not None:
                try:
                    return re.sub(r"\r?\n\Z", "", self.read_file(file).data.decode())
                except (OSError, ValueError) as error:  # what the decoder says has the file in it
                    why = "it is no UTF-8" if isinstance(error, UnicodeDecodeError) else _why(error)
                    self.expected(f"a file of UTF-8 that can be read, as {file}: {why}", path)
            elif name is None:
                self.expected("${NAME} or ${NAME:-default}, the name of letters, digits and _; or ${file:PATH}", path)
            elif default is None and name not in os.environ:
                self.expected(f"{name} in the environment, or a default as in ${{{name}:-default}}", path)
            return os.environ.get(name or "") or (default or "")[2:]

        expanded = _VARIABLE.sub(value_of, text)
        return expanded if len(self.faults) == before else None

    def check(self, clashes: Iterable[Clash] = ()) -> None:
        """Raises ConfigError for all faults, these clashes among them."""
        told = list(self.faults)
        for paths, problem in clashes:
            location = next((self.locations[p] for p in paths if p in self.locations), self.location(1, paths[0]))
            if not any(fault.startswith(location) for fault in told):  # else a default stands for the faulty value
                self.fault(location, problem)
        if self.faults:
            raise ConfigError(*self.faults)


def _why(error: OSError | ValueError) -> object:
    return error.strerror if isinstance(error, OSError) else error


def _parts(kind: Any) -> tuple[Any, Callable[[object], object] | None, bool, bool]:
    """The parts of a field's type: plain type, reader, whether null is allowed, whether a list needs an item."""
    nullable = NoneType in get_args(kind)
    if nullable:
        [kind] = [each for each in get_args(kind) if each is not NoneType]
    kind, noted, *_ = get_args(kind) if get_origin(kind) is Annotated else (kind, None)
    return kind, noted if callable(noted) else None, nullable, isinstance(noted, str)


def _constructed(node: yaml.Node) -> object:
    """The value of a scalar in YAML. For a mapping or a list, a value that every reader refuses."""
    if not isinstance(node, yaml.ScalarNode):
        return _FAULTY
    try:
        return yaml.constructor.SafeConstructor().construct_object(node)
    except Exception:  # there are many kinds: `!!int x`, a 13th month, thousands of digits
        return node.value


def _given(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        return "a mapping" if isinstance(node, yaml.MappingNode) else "a list" if node.value else "an empty list"
    return "null" if node.tag.endswith(":null") else quoted(node.value)


def quoted(text: str) -> str:
    """Text as an error repeats it: on one line, not too long, without the parts of a URL that may be secret."""
    text = re.sub(r"(?s)(?:(?<=//)|^(?!.*//)).*@|(?<=[?#]).*", "...", text)
    return repr(text if len(text) <= GIVEN_CHARS_MAX else text[:GIVEN_CHARS_MAX] + "...")


# Where a configuration comes from: a text, a file, standard input, or the command line's flags.


def parse(text: str, source: str, folder: Path | None = None, in_force: Config | None = None) -> Config:
    """The configuration in a YAML text. Raises `ConfigError`, each line of it starting with `source:line: key.path: `.

    File names in it are relative to `folder`, by default the folder of `source`. Each file is read once.
    With `in_force`, the configuration that runs, values that a reload cannot change must be the same.
    """
    document = Document(source, Path(source).parent if folder is None else folder)
    return _checked(document, Config, document.read(Config, text), in_force)


def _checked(document: Document, kind: type[_C], config: object, in_force: Config | None = None) -> _C:
    """The configuration of a document. Raises ConfigError for all faults, clashes between values included."""
    document.check(clashes(config, in_force, document.given) if isinstance(config, kind) else ())
    assert isinstance(config, kind)
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
    """The configuration in a file, for a server on stdio. Its log is opened last. Raises ConfigError."""
    document = Document(str(path), path.parent)
    config = _checked(document, StdioConfig, document.read(StdioConfig, _text(path, str(path))))
    try:
        if config.log.file is not None:
            config.log.file.open("ab").close()
    except (OSError, ValueError) as error:
        document.expected("a file that can be written", "log.file", f": {_why(error)}")
        document.check()
    return config


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
    return _checked(document, Config, Config(upstreams=(server,), **values))
