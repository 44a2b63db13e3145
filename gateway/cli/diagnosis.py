"""What went wrong where a session could not be opened, in words that say what to do."""

import asyncio
import re
from contextlib import suppress
from typing import Any, Final

import aiohttp
import msgspec
from yarl import URL

from gateway.cli.mcp_client import Client, NotAnswered, body_of, events, value_of
from gateway.cli.table import shown
from gateway.http.addresses import misplaced

_PATHS: Final = ("/mcp", "/", "/api/mcp", "/sse")  # where servers often are
_LOOK_S: Final = 3.0  # for each request that looks for the reason of a failure
_NEXT: Final = "2026-07-28"
_OLD: Final = (
    "speaks HTTP+SSE of 2024-11-05, the old transport, and not Streamable HTTP: taskgate passes it on, and filters "
    "nothing there"
)
_METADATA: Final = re.compile(r'resource_metadata="([^"]*)"')
_WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
_DOCUMENT_BYTES_MAX: Final = 2**20
_Metadata: Final = msgspec.defstruct("_Metadata", [("authorization_servers", list[str] | None, None)])


async def opened(client: Client, command: str) -> dict[str, Any]:
    """Open a session. Returns the result of `initialize`. `command` is that of taskgate. Raises NotAnswered."""
    try:
        return await client.initialize()
    except NotAnswered as refused:
        words = await _why(client, command, refused)
        raise NotAnswered(words) from None


async def _why(client: Client, command: str, refused: NotAnswered) -> str:
    url, status = client.target.url, refused.status
    if client.target.socket is not None or status in (0, 300):
        return str(refused)
    if status in (401, 403):
        return f"{url} asks for a login ({status}). {await _authority(client, refused)}"
    if await _is_next(client):
        return f"{url} speaks {_NEXT} alone, which has no tasks/list: taskgate does nothing there"
    if refused.code:
        return str(refused)
    others = [each for path in _PATHS if (each := str(URL(url).with_path(path))) != url]
    if found := [each for each in others if await _is_mcp(client, each)]:
        there = " or ".join(f"taskgate {command} {each}" for each in found)
        return f"{url} is not MCP, but another path of it is: {there}"
    for old, where in ((url, ""), (str(URL(url).with_path("/sse")), " is not MCP, but /sse there")):
        if await _is_old(client, old):
            return f"{url}{where} {_OLD}"
    said = misplaced(status, "", url, URL(url).path)  # of a 404; redirects were followed
    hint = f"; {said}" if said else ""
    return f"{refused}{hint}\nThis is not MCP over HTTP, nor is {', '.join(_PATHS)} there."


async def _is_mcp(client: Client, url: str) -> bool:
    try:
        async with Client(client.target._replace(url=url)) as other, asyncio.timeout(_LOOK_S):
            await other.initialize()
    except (NotAnswered, TimeoutError) as refused:
        return isinstance(refused, NotAnswered) and refused.status in (401, 403)
    return True


async def _is_old(client: Client, url: str) -> bool:
    """Whether this is the stream of the transport of 2024-11-05, by its first event."""
    fields = {**client.target.fields, "Accept": "text/event-stream"}
    with suppress(aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(_LOOK_S), client.http.get(url, headers=fields, allow_redirects=False) as response:
            if response.status == 200 and response.content_type == "text/event-stream":
                async for event in events(response):
                    if event.data is not None:
                        return event.is_endpoint
    return False


async def _is_next(client: Client) -> bool:
    """Whether this server speaks revision 2026-07-28."""
    meta = {"io.modelcontextprotocol/protocolVersion": _NEXT, "io.modelcontextprotocol/clientCapabilities": {}}
    target = client.target._replace(fields={**client.target.fields, "Mcp-Method": "server/discover"})
    with suppress(NotAnswered, TimeoutError):
        async with Client(target, revision=_NEXT) as other, asyncio.timeout(_LOOK_S):
            said = await other.ask("server/discover", {"_meta": meta})
            return _NEXT in str(said.get("supportedVersions"))
    return False


async def _authority(client: Client, refused: NotAnswered) -> str:
    """Which authorization server gives a token, and how to bring it."""
    url = URL(client.target.url)
    said = _METADATA.search(refused.fields.get("WWW-Authenticate", ""))
    candidates = [said[1]] if said else [str(url.with_path(_WELL_KNOWN + path)) for path in (url.path, "")]
    who = "It does not say which server gives tokens."
    for candidate in candidates:
        document = b""
        with suppress(aiohttp.ClientError, TimeoutError, ValueError):
            async with asyncio.timeout(_LOOK_S), client.http.get(candidate, allow_redirects=False) as response:
                if response.status == 200:
                    document = await body_of(response, _DOCUMENT_BYTES_MAX)
        try:
            if servers := value_of(document or b"{}", _Metadata).get("authorization_servers"):
                who = f"Its authorization server is {shown(servers[0])}."
                break
        except ValueError as error:
            who = f"Its metadata at {shown(candidate)} cannot be read: {error}."
    return f"{who} Bring a token: --header-file FILE, with a line Authorization: Bearer TOKEN"
