"""What a client and a server say to each other, recorded on the way: each request with its result, as written."""

import asyncio
import json
import re
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tests.launch import Json, eventually
from tests.relay.http1 import Message, Reader

_NEXT: Final = re.compile(r'\s*[{\[,]\s*(?:("(?:[^"\\]|\\.)*")\s*:\s*)?')
_DATA: Final = re.compile(r"(?:^|[\r\n])data: ?([^\r\n]*)")
_DECODER: Final = json.JSONDecoder()


def parts(text: str) -> list[tuple[str, str]]:
    """The members of a JSON object, or the items of an array under no name, each as it was written."""
    found, at = list[tuple[str, str]](), 0
    while (head := _NEXT.match(text, at)) and text[head.end()] not in "}]":
        _, at = _DECODER.raw_decode(text, head.end())
        found.append((json.loads(head[1] or '""'), text[head.end() : at]))
    return found


@dataclass
class Exchange:
    """A request, in its session, and its result as it was written: empty if there is none."""

    session: str
    method: str
    params: Json
    result: str

    @cached_property
    def said(self) -> Json:
        value: Json = json.loads(self.result or "{}")
        return value

    @cached_property
    def tasks(self) -> dict[str, str]:
        said = dict(parts(self.result))
        match self.method:
            case "tasks/list":
                texts = [text for _, text in parts(said.get("tasks", ""))]
            case "tasks/get" if self.result:
                members = (f'"{name}":{text}' for name, text in said.items() if name != "_meta")
                texts = [f"{{{','.join(members)}}}"]
            case "tools/call" if "task" in said:
                texts = [said["task"]]
            case _:
                texts = []
        return {str(json.loads(text)["taskId"]): text for text in texts}


class _Connection:
    def __init__(self) -> None:
        self.asked, self.answered, self.heads = Reader(), Reader(), 0


class Witness:
    """What was said to the server at `url`, or to the process of a command, since `forget`."""

    def __init__(self, url: str = "", folder: Path | None = None, command: Sequence[str] = ()) -> None:
        self.url, self.folder = url, folder
        self.here = ["--", *command] if folder else [url]  # what `taskgate` is given
        self._order: list[tuple[_Connection, int]] = []

    def forget(self) -> None:
        """Begin anew."""
        self._order.clear()

    async def pass_on(self, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy a connection both ways."""
        connection = _Connection()
        far_reader, far_writer = await asyncio.open_connection(host, port)

        def ask(data: bytes) -> None:
            connection.asked.feed(data)
            known, connection.heads = connection.heads, connection.asked.count()
            self._order += [(connection, at) for at in range(known, connection.heads)]

        async def copy(source: asyncio.StreamReader, to: asyncio.StreamWriter, take: Callable[[bytes], None]) -> None:
            with suppress(ConnectionError):
                while data := await source.read(1 << 16):
                    take(data)
                    to.write(data)
                    await to.drain()
            to.close()

        await asyncio.gather(copy(reader, far_writer, ask), copy(far_reader, writer, connection.answered.feed))

    def over_http(self) -> list[tuple[Message, Message | None]]:
        """Each request and its response, in the order of the requests."""
        pairs = dict[_Connection, list[tuple[Message, Message | None]]]()
        for connection in {connection for connection, _ in self._order}:
            requests = connection.asked.requests()
            answers = connection.answered.responses([request.method for request in requests], "fin")
            pairs[connection] = list(zip_longest(requests, [message for message in answers if message.is_final]))
        return [pairs[connection][at] for connection, at in self._order]

    def exchanges(self) -> list[Exchange]:
        """Each request of JSON-RPC that was answered in JSON-RPC or not at all, in their order."""
        if self.folder is not None:
            return self._lines(self.folder)
        found: list[Exchange] = []
        waiting: dict[str, int] = {}
        for request, response in self.over_http():
            message, session = json.loads(request.body or b"{}"), _value(request, b"mcp-session-id")
            if response is None or 300 <= response.status < 400:
                continue
            if "id" in message and "method" in message:
                waiting[str(message["id"])] = len(found)
                found.append(Exchange(session, message["method"], message.get("params") or {}, ""))
            for text in _told(response):
                answer = dict(parts(text))
                if "method" not in answer and (at := waiting.pop(str(json.loads(answer["id"])), None)) is not None:
                    opened = session or _value(response, b"mcp-session-id")
                    found[at] = replace(found[at], session=opened, result=answer.get("result", ""))
        return found

    @staticmethod
    def _lines(folder: Path) -> list[Exchange]:
        asked, told = ((folder / name).read_text().split("\n") for name in ("in", "out"))
        answers = [dict(parts(line)) for line in told if line.startswith("{")]
        results = {answer["id"]: answer.get("result", "") for answer in answers if "method" not in answer}
        requests = [message for message in map(json.loads, filter(None, asked)) if "id" in message]
        if len(requests) != len(results):
            raise ValueError("not all is recorded yet")
        return [Exchange("", m["method"], m.get("params") or {}, results[json.dumps(m["id"])]) for m in requests]

    async def heard(self) -> list[Exchange]:
        """The same, once all is recorded: what a process said may still be on its way to its file."""
        found: list[Exchange] = []

        async def is_complete() -> bool:
            with suppress(KeyError, ValueError, OSError):
                found[:] = self.exchanges()
            return bool(found)

        await eventually(is_complete, "what was said is recorded")
        return found

    def deleted(self) -> list[str]:
        requests = [request for request, _ in self.over_http()]
        return [_value(request, b"mcp-session-id") for request in requests if request.method == b"DELETE"]


def _value(message: Message, name: bytes) -> str:
    return (message.value(name) or b"").decode()


def _told(response: Message) -> list[str]:
    body = response.body
    if _value(response, b"content-encoding"):  # it may be cut: a client leaves a stream once it has its answer
        body = zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(body)
    match _value(response, b"content-type").partition(";")[0]:
        case "application/json" if body.strip().startswith(b"{"):
            return [body.decode()]
        case "text/event-stream":
            return [data for data in _DATA.findall(body.decode()) if data.startswith("{")]
    return []


@asynccontextmanager
async def on_the_way(url: str) -> AsyncIterator[Witness]:
    at = urlsplit(url)
    assert at.hostname is not None and at.port is not None
    witness = Witness()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await witness.pass_on(str(at.hostname), at.port or 80, reader, writer)

    async with await asyncio.start_server(pass_on, "127.0.0.1", 0) as server:
        here = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        witness.url = at._replace(netloc=here).geturl()
        witness.here = [witness.url]
        yield witness


def beside(folder: Path, command: Sequence[str]) -> Witness:
    """A witness of the process of a command, which is the one that is tried: its two streams are copied to files."""
    script = 'exec "$@" < <(exec tee "$0/in") > >(exec tee "$0/out")'
    return Witness(folder=folder, command=["bash", "-c", script, str(folder), *command])
