"""An MCP client of one session: requests out, results in.

In: an address and header fields. Out: results; or `NotAnswered`, whose message names the address and what to do.
Always: fields go to one origin only; a redirect to another is refused. The client counts its requests, and the bytes of
the results. Sessions that it opened are deleted when it closes. Every answer has a limit.
"""

import asyncio
import errno
import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import aiohttp
from yarl import URL

from gateway.mcp import jsonrpc, sse
from gateway.transport.certificates import unusable

REVISION: Final = "2025-11-25"
INFO: Final = {"name": "taskgate", "version": "1"}
ANSWER_BYTES_MAX: Final = 64 * 2**20
SHOWN_CHARS_MAX: Final = 300  # of a body that an error repeats
REDIRECTS_MAX: Final = 5
RESUMED_MAX: Final = 50  # times that one answer is fetched on, where a server closes its streams
RETRY_S_MAX: Final = 5.0
CLOSING_S: Final = 3.0
_ACCEPT: Final = "application/json, text/event-stream"


class NotAnswered(Exception):
    """A request got no result. `status` is that of HTTP, 0 if there was no response; `code` that of JSON-RPC."""

    def __init__(self, words: str, status: int = 0, code: int = 0, fields: Mapping[str, str] | None = None) -> None:
        super().__init__(words)
        self.status, self.code, self.fields = status, code, fields or {}


class TaskPage(NamedTuple):
    """A page of a list: its tasks, the cursor of the next one, and how many there are if a gateway says so."""

    tasks: list[dict[str, Any]]
    cursor: Any
    total: int | None


def object_of(value: Any) -> dict[str, Any]:
    """A JSON object; an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}


class Target(NamedTuple):
    """A server's address, the fields that each request to it has, and how it is reached."""

    url: str
    fields: Mapping[str, str] = {}
    ca: Path | None = None
    socket: str | None = None

    def connector(self) -> aiohttp.BaseConnector:
        """Connections to it. Raises NotAnswered if `ca` cannot be used."""
        if self.socket is not None:
            return aiohttp.UnixConnector(self.socket)
        if not self.url.startswith("https:"):
            return aiohttp.TCPConnector()
        try:
            return aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=self.ca))
        except OSError as error:
            raise NotAnswered(f"--{unusable(error, ca=self.ca)}") from None


class Client:
    """One session, or none if the server has none. Raises NotAnswered if there can be no connections."""

    def __init__(self, target: Target, session_id: str = "", revision: str = "") -> None:
        self.target = target
        self.session_id = session_id
        self.revision = revision
        self.requests = 0
        self.received_bytes = 0
        self.http = aiohttp.ClientSession(connector=target.connector())
        self._opened = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._opened and self.session_id:
            with suppress(NotAnswered, TimeoutError):
                async with asyncio.timeout(CLOSING_S):
                    (await self._send("DELETE")).release()
        await self.http.close()

    async def initialize(self) -> dict[str, Any]:
        """Open a session. Returns the result of `initialize`. Raises NotAnswered."""
        params = {"protocolVersion": REVISION, "capabilities": {}, "clientInfo": INFO}
        said = await self.ask("initialize", params)
        self._opened = True
        self.revision = str(said.get("protocolVersion", ""))
        (await self._send("POST", {"jsonrpc": "2.0", "method": "notifications/initialized"})).release()
        return said

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The result of a request. Raises NotAnswered."""
        self.requests += 1
        number = self.requests
        response = await self._send("POST", {"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        url, status, fields = self.target.url, response.status, response.headers
        try:
            self.session_id = fields.get("Mcp-Session-Id", self.session_id)
            answer = await self._answer(response, number)
        except aiohttp.ClientError as error:
            raise NotAnswered(f"the answer of {url} to {method} broke off: {error}", status) from None
        finally:
            response.close()
        if isinstance(answer, bytes):
            words = f"{url} answered {method} with {status} {response.reason or ''}: {_shown(answer)}"
            raise NotAnswered(words, status, fields=fields)
        raw = bytes(answer.result)
        if not raw:
            said = json.loads(bytes(jsonrpc.member(answer.error, "message")) or b'"no words"')
            code = jsonrpc.error_code(answer) or 0
            words = f"{url} refuses {method}: {_shown(str(said).encode())} ({code})"
            raise NotAnswered(words, status, code, fields)
        self.received_bytes += len(raw)
        result = json.loads(raw)
        if not isinstance(result, dict):
            raise NotAnswered(f"{url} answered {method} with a result that is no object", status)
        return result

    async def page(self, params: Mapping[str, Any]) -> TaskPage:
        """A page of `tasks/list`. Raises NotAnswered."""
        said = await self.ask("tasks/list", params)
        tasks = said.get("tasks") or []
        if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
            raise NotAnswered(f"{self.target.url} answered tasks/list with something other than a list of tasks")
        return TaskPage(tasks, said.get("nextCursor"), object_of(said.get("_meta")).get("taskgate/total"))

    async def pages(self, params: Mapping[str, Any], first: TaskPage | None = None) -> AsyncIterator[TaskPage]:
        """The pages of a list, `first` if it is there already. One whose cursor comes again is the last."""
        page = first or await self.page(params)
        before = None
        yield page
        while page.cursor not in (None, before):
            before = page.cursor
            page = await self.page({**params, "cursor": before})
            yield page

    async def _answer(self, response: aiohttp.ClientResponse, number: int) -> jsonrpc.Message | bytes:
        """The response to request `number`; the body, if it is none."""
        if response.content_type != "text/event-stream" or response.status != 200:
            body = b""
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > ANSWER_BYTES_MAX:
                    raise NotAnswered(f"{self.target.url} answered with more than {ANSWER_BYTES_MAX:,} bytes")
            message = jsonrpc.parse(body)
            return message if message is not None and message.is_response else body
        for _ in range(RESUMED_MAX):
            last_id, retry_s = "", 1.0
            async for event in events(response):
                if event.is_endpoint:
                    return b"the first event of HTTP+SSE (2024-11-05)"
                message = jsonrpc.parse(event.data or b"") if event.is_message else None
                if message is not None and message.is_response and jsonrpc.same_id(message.id, b"%d" % number):
                    return message
                last_id = event.id.decode(errors="replace") if event.id is not None else last_id
                retry_s = event.retry_ms / 1000 if event.retry_ms is not None else retry_s
            response.release()
            if not last_id:
                return b"an event stream without the answer"
            await asyncio.sleep(min(retry_s, RETRY_S_MAX))
            response = await self._send("GET", more={"Last-Event-ID": last_id})
        return b"an event stream that was closed again and again"

    async def _send(
        self, method: str, message: object = None, more: Mapping[str, str] | None = None
    ) -> aiohttp.ClientResponse:
        """The response to any request, its body not yet read. Raises NotAnswered."""
        fields = {"Accept": _ACCEPT, **self.target.fields, **(more or {})}
        if self.session_id:
            fields["Mcp-Session-Id"] = self.session_id
        if self.revision:
            fields["Mcp-Protocol-Version"] = self.revision
        for _ in range(REDIRECTS_MAX):
            url = URL(self.target.url, encoded=True)
            try:
                response = await self.http.request(method, url, json=message, headers=fields, allow_redirects=False)
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                raise NotAnswered(why(self.target.url, error)) from None
            if response.status not in (301, 302, 307, 308):
                return response
            response.release()
            location = response.headers.get("Location", "")
            try:
                to = url.join(URL(location, encoded=True))
                same = to.origin() == url.origin()
            except ValueError:
                same = False
            if not same:
                words = f"{self.target.url} redirects to {location}, which is another origin: nothing was sent there"
                raise NotAnswered(words, 300)
            self.target = self.target._replace(url=str(to))
        raise NotAnswered(f"{self.target.url} redirects again and again", 300)


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[sse.Event]:
    """The events of a stream, as they come."""
    parser = sse.Parser(ANSWER_BYTES_MAX)
    async for piece in response.content.iter_any():
        for event in parser.feed(piece):
            yield event


def why(url: str, error: BaseException) -> str:
    """In words, why an address could not be asked."""
    at = URL(url)
    where = f"{at.host}:{at.port}"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        said = error.certificate_error
        reason = said.verify_message if isinstance(said, ssl.SSLCertVerificationError) else said
        return f"TLS: the certificate of {where} is not trusted: {reason}; --ca FILE names its authority"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return f"TLS: {where} cannot be asked over https: {_words(error.os_error)}; does it speak http?"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"{where} cannot be reached: {_words(error.os_error)}; is the server running there?"
    if isinstance(error, TimeoutError):
        return f"{url} gave no answer in time"
    hint = "; does it speak https?" if at.scheme == "http" else ""
    if isinstance(error, aiohttp.ServerDisconnectedError | OSError):
        return f"{url} closed the connection without an answer{hint}"
    return f"{url} does not answer in HTTP: {error or type(error).__name__}{hint}"


def _words(error: OSError) -> str:
    """The system's own words, where it has any: asyncio writes its own. TLS has words and no numbers."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return os.strerror(error.errno) if error.errno and error.errno in errno.errorcode else error.strerror or str(error)


def _shown(body: bytes) -> str:
    """The beginning of a body, on one line."""
    text = " ".join(body[: 4 * SHOWN_CHARS_MAX].decode(errors="replace").split())
    return text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + "..."
