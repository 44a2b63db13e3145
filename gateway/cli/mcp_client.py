"""An MCP client of one session: requests out, results in.

In: an address and header fields. Out: results; or `NotAnswered`, whose message names the address and what to do.
Always: fields go to one address only; sessions that it opened are deleted when it closes, but for one in which a tool
may work; every answer has a limit of bytes, and whoever asks has one of time.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from itertools import chain, count
from typing import Annotated, Any, Final, NamedTuple, Self

import aiohttp
import msgspec
from yarl import URL

from gateway.cli.task_table import SHOWN_CHARS_MAX, Json, shown
from gateway.http.address_rewriting import misplaced
from gateway.mcp import jsonrpc, sse
from gateway.transport.tls_certificates import trusting, unreachable

REVISION: Final = "2025-11-25"
ANSWER_BYTES_MAX: Final = 64 * 2**20
DEPTH_MAX: Final = 100  # of JSON. To compare or to write a deeper value can end in a RecursionError
RESUMED_MAX: Final = 50  # times that one answer is fetched on, where a server closes its streams
RETRY_S_MAX: Final = 5.0
CLOSING_S: Final = 3.0
_numbers: Final = count(1)  # the ids of requests: a command has one session for all clients
_PATHS: Final = ("/mcp", "/", "/api/mcp")  # where servers often are
_LOOK_S: Final = 3.0  # for each request that looks for the reason of a failure


class NotAnswered(Exception):
    """A request got no result. `status` is that of HTTP, 0 if there was no response; `code` that of JSON-RPC."""

    def __init__(self, words: str, status: int = 0, code: int = 0, fields: Mapping[str, str] | None = None) -> None:
        super().__init__(words)
        self.status, self.code, self.fields = status, code, fields or {}


class TaskPage(NamedTuple):
    """A page of a list: its tasks, the cursor of the next one, and how many there are if a gateway says so."""

    tasks: list[Json]
    cursor: Any
    total: int | None


class _ListedTask(msgspec.Struct):
    taskId: str
    status: str


# What is read of two results. Some servers write `false` in place of what they cannot; mcp-go writes null for no tasks.
_form: Final = msgspec.defstruct
_Can = _form("_Can", [("tasks", _form("_CanTasks", [("list", Json | bool | None, None)]) | bool | None, None)])
_Opened = _form(
    "_Opened", [("protocolVersion", str), ("capabilities", _Can | None, None), ("serverInfo", Json | None, None)]
)
_Meta = _form("_Meta", [("total", Annotated[int, msgspec.Meta(ge=0)] | None, None)], rename={"total": "taskgate/total"})
_Listed = _form(
    "_Listed", [("tasks", list[_ListedTask] | None), ("nextCursor", str | None, None), ("_meta", _Meta | None, None)]
)


def value_of(data: bytes, form: Any = Json) -> Any:
    """The value of JSON, of which `form` is a part. Raises ValueError, whose text says what is wrong, and where."""
    try:
        try:
            value = msgspec.json.decode(data)
        except jsonrpc.UNREADABLE:
            value = msgspec.json.decode(jsonrpc.rewritten(data) or data)
        level = [value]
        for _ in range(DEPTH_MAX):
            nested = (each for each in level if isinstance(each, dict | list))
            level = [*chain.from_iterable(each.values() if isinstance(each, dict) else each for each in nested)]
        if level:
            raise RecursionError
        msgspec.convert(value, form)
    except RecursionError:
        raise ValueError(f"JSON that is nested more than {DEPTH_MAX} deep") from None
    except msgspec.MsgspecError as error:
        raise ValueError(shown(str(error))) from None
    return value


def object_of(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


class Target(NamedTuple):
    """A server's address, or the command that started it; the fields of each request, and how it is reached."""

    url: str
    fields: Mapping[str, str] = {}
    socket: str | None = None
    command: str = ""

    @property
    def name(self) -> str:
        return self.command or self.url


class Client:
    """One session, or none if the server has none."""

    def __init__(self, target: Target, session_id: str = "", revision: str = "") -> None:
        self.target, self.session_id, self.revision = target, session_id, revision
        self.received_bytes = 0
        tls = trusting(None) if target.url.startswith("https:") else True
        to = aiohttp.UnixConnector(target.socket) if target.socket is not None else aiohttp.TCPConnector(ssl=tls)
        self.http = aiohttp.ClientSession(connector=to, timeout=aiohttp.ClientTimeout())
        self._opened = self.is_left_open = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._opened and self.session_id and not self.is_left_open:
                with suppress(NotAnswered, TimeoutError):
                    async with asyncio.timeout(CLOSING_S):
                        (await self._send("DELETE")).release()
        finally:
            await self.http.close()

    async def initialize(self) -> Json:
        """Open a session. Returns the result of `initialize`. Raises NotAnswered."""
        params = {"protocolVersion": REVISION, "capabilities": {}, "clientInfo": {"name": "taskgate", "version": "1"}}
        said = await self.ask("initialize", params, _Opened)
        self._opened = True
        self.revision = said["protocolVersion"]
        (await self._send("POST", {"jsonrpc": "2.0", "method": "notifications/initialized"})).release()
        return said

    async def ask(self, method: str, params: Mapping[str, Any], form: Any = Json) -> Json:
        """The result of a request, of which `form` is a part. Raises NotAnswered."""
        number = next(_numbers)
        response = await self._send("POST", {"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        url, status, fields = self.target.name, response.status, response.headers
        try:
            self.session_id = fields.get("Mcp-Session-Id", self.session_id)
            answer = await self._answer(response, number)
        except aiohttp.ClientError as error:
            raise NotAnswered(f"the answer of {url} to {method} broke off: {one_line(str(error))}", status) from None
        except ValueError as error:
            raise NotAnswered(f"{url} answered {method} with {error}", status) from None
        finally:
            response.close()
        if isinstance(answer, bytes):
            how = f" answered {method} with {status} {one_line(response.reason or '')}" * (not self.target.command)
            raise NotAnswered(f"{url}{how}: {one_line(answer)}", status, fields=fields)
        raw = bytes(answer.result)
        if not raw:
            code, said = jsonrpc.code_of(answer.error) or 0, bytes(jsonrpc.member(answer.error, "message"))
            try:
                words = one_line(value_of(said or b'"no words"', str))
            except ValueError:
                words = f"no words but {one_line(bytes(answer.error))}"
            raise NotAnswered(f"{url} refuses {method}: {words} ({code})", status, code, fields)
        self.received_bytes += len(raw)
        try:
            result: Json = value_of(raw, form)
        except ValueError as error:
            raise NotAnswered(
                f"{url} answered {method} with a wrong result: {error}; it began {one_line(raw)}"
            ) from None
        return result

    async def page(self, params: Mapping[str, Any]) -> TaskPage:
        """A page of `tasks/list`. Raises NotAnswered."""
        said = await self.ask("tasks/list", params, _Listed)
        return TaskPage(said["tasks"] or [], said.get("nextCursor"), object_of(said.get("_meta")).get("taskgate/total"))

    async def pages(self, params: Mapping[str, Any], first: TaskPage | None = None) -> AsyncIterator[TaskPage]:
        """The pages of a list, `first` if it is there already. One whose cursor comes again is the last.

        So is one with an empty cursor, if the server refuses that, or begins again: then it has none.
        """
        page, seen = first or await self.page(params), set[int]()  # hashes, since cursors may be long
        while page.cursor is not None and hash(page.cursor) not in seen:
            behind = None
            if page.cursor == "" and (behind := await self._behind_empty(params, seen)) is None:
                page = page._replace(cursor=None)
                break
            yield page
            seen.add(hash(page.cursor))
            page = behind or await self.page({**params, "cursor": page.cursor})
        yield page._replace(cursor=page.cursor or None)

    async def _behind_empty(self, params: Mapping[str, Any], seen: set[int]) -> TaskPage | None:
        """The page of an empty cursor, when other ones were `seen`; None if that was the end."""
        try:
            page = await self.page({**params, "cursor": ""})
        except NotAnswered as refused:
            if refused.code or refused.status >= 400:
                return None
            raise
        return None if page.cursor == "" or hash(page.cursor) in seen else page

    async def _answer(self, response: aiohttp.ClientResponse, number: int) -> jsonrpc.Message | bytes:
        """The response to request `number`; the body, if it is none."""
        if response.content_type != "text/event-stream" or response.status != 200:
            body = bytearray()
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > ANSWER_BYTES_MAX:
                    raise ValueError(f"more than {ANSWER_BYTES_MAX:,} bytes")
            message = jsonrpc.parse(body)
            return message if message is not None and (message.is_response or message.answers(-1)) else bytes(body)
        for _ in range(RESUMED_MAX):
            last_id, retry_s = "", 1.0
            parser = sse.Parser(ANSWER_BYTES_MAX)
            async for piece in response.content.iter_any():
                for event in parser.feed(piece):
                    message = jsonrpc.parse(event.data or b"") if event.is_message else None
                    if message is not None and message.answers(number):
                        return message
                    last_id = last_id if event.id is None else event.id.decode(errors="replace")
                    retry_s = retry_s if event.retry_ms is None else event.retry_ms / 1000
            response.release()
            if not last_id:
                return b"an event stream without the answer"
            await asyncio.sleep(min(retry_s, RETRY_S_MAX))
            response = await self._send("GET", last_id=last_id)
        return b"an event stream that was closed again and again"

    async def _send(self, method: str, message: object = None, last_id: str = "") -> aiohttp.ClientResponse:
        """The response to any request, its body not yet read. Raises NotAnswered."""
        own = {"Last-Event-ID": last_id, "Mcp-Session-Id": self.session_id, "Mcp-Protocol-Version": self.revision}
        given = {name: value for name, value in own.items() if value}
        fields = {"Accept": "application/json, text/event-stream", **self.target.fields, **given}
        url = URL(self.target.url, encoded=True)
        try:
            return await self.http.request(method, url, json=message, headers=fields, allow_redirects=False)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise NotAnswered(_unasked(self.target.url, error)) from None


def _unasked(url: str, error: BaseException) -> str:
    """In words, why an address could not be asked."""
    at = URL(url)
    found = getattr(error, "certificate_error", getattr(error, "os_error", None))  # aiohttp's have nothing in common
    if isinstance(found, OSError):
        hint = "" if isinstance(found, ssl.SSLError | socket.gaierror) else "; is the server running there?"
        return f"{at.host}:{at.port} cannot be reached: {unreachable(found, 'SSL_CERT_FILE=FILE')}{hint}"
    hint = ": is it https?" if at.scheme == "http" else ""
    if isinstance(error, aiohttp.ServerDisconnectedError | OSError):
        return f"{url} closed the connection without an answer{hint}"
    return f"{url} does not answer in HTTP: {one_line(str(error)) or type(error).__name__}{hint}"


def one_line(text: str | bytes) -> str:
    text = text[: 4 * SHOWN_CHARS_MAX].decode(errors="replace") if isinstance(text, bytes) else text
    return shown(" ".join(text.split()))


async def opened(client: Client, command: str) -> Json:
    """Open a session. Returns the result of `initialize`. `command` is that of taskgate. Raises NotAnswered."""
    try:
        return await client.initialize()
    except NotAnswered as refused:
        raise NotAnswered(await _why(client, command, refused)) from None


async def declared_list(client: Client, said: Json) -> Any:
    """What a result of `initialize` declares of `tasks/list`; `{}` if it declares none, but the server answers one."""
    declared = object_of(object_of(said.get("capabilities")).get("tasks")).get("list")
    if declared in (None, False):
        with suppress(NotAnswered):
            await client.page({})
            return {}
    return declared


async def _why(client: Client, command: str, refused: NotAnswered) -> str:
    url, status = client.target.url, refused.status
    if client.target.socket is not None or not status:
        return str(refused)
    if said := misplaced(status, refused.fields.get("Location", ""), url, "") if status < 400 else "":
        return f"{url} {said}"
    if status in (401, 403):
        asks = one_line(refused.fields.get("WWW-Authenticate", "it does not say which"))
        bring = "Bring a token: --header-file FILE, with a line Authorization: Bearer TOKEN"
        return f"{url} asks for a login ({status}): {asks}. {bring}"
    if refused.code or "this is taskgate's admin listener" in str(refused):  # which names the clients' address
        return str(refused)
    others = [other for path in _PATHS if (other := str(URL(url).with_path(path))) != url]
    if there := " or ".join([f"taskgate {command} {other}" for other in others if await _is_mcp(client, other)]):
        return f"{url} is not MCP, but another path of it is: {there}"
    hint = f"; {said}" if (said := misplaced(status, "", url, URL(url).path)) else ""  # of a 404
    return f"{refused}{hint}\nThis is not MCP over HTTP, nor is {', '.join(_PATHS)} there."


async def _is_mcp(client: Client, url: str) -> bool:
    try:
        async with Client(client.target._replace(url=url)) as other, asyncio.timeout(_LOOK_S):
            await other.initialize()
    except (NotAnswered, TimeoutError) as refused:
        return isinstance(refused, NotAnswered) and refused.status in (401, 403)
    return True
