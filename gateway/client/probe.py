"""`taskgate try`: what is asked of a server, in which order, and what is said.

In: a place and options. Out: facts as they are learned, one line each; the exit status. Always: nothing is changed at
the server but by `--create`; sessions that were opened are deleted, however this ends.
"""

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

import aiohttp
from yarl import URL

from gateway.app import App
from gateway.client import facts
from gateway.client.facts import ByHand, ServerFacts
from gateway.client.link import Client, NotAnswered, events, object_of
from gateway.client.place import Target, gateway_before
from gateway.client.text import TaskFields
from gateway.config import IndexLimits

CRITERIA: Final = {"status": list(facts.UNFINISHED)}
PATHS: Final = ("/mcp", "/", "/api/mcp", "/sse")  # where servers often are
MISTAKE_S: Final = 3.0  # for each request that looks for the reason of a failure
_NEXT: Final = "2026-07-28"
_OLD: Final = (
    "speaks HTTP+SSE of 2024-11-05, the old transport, and not Streamable HTTP: taskgate passes it on, and filters "
    "nothing there"
)
_METADATA: Final = re.compile(r'resource_metadata="([^"]*)"')
_WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
_DOCUMENT_BYTES_MAX: Final = 2**20


class Probe:
    """One trial. `known` grows; `told` gets the name of each fact as it is learned, `shown` how far a list is read."""

    def __init__(
        self, place: Target, pages_max: int, told: Callable[[str, Any], None], shown: Callable[[str], None]
    ) -> None:
        self.known: ServerFacts = {"url": place.url}
        self.unfinished: list[TaskFields] = []  # as the gateway has listed them last
        self._place = place
        self._pages_max = pages_max
        self._told = told
        self._shown = shown

    def _learn(self, name: str, value: Any) -> None:
        self.known[name] = value
        self._told(name, value)

    async def run(self, session_id: str, create: str | None, arguments: dict[str, Any]) -> None:
        """Learn all that can be learned. Raises NotAnswered."""
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(aiohttp.ClientSession(connector=self._place.connector()))
            fresh = await stack.enter_async_context(Client(http, self._place.url, self._place.fields))
            await self._meet(fresh)
            if not self.known["lists"] or self.known["filters"] == "declared":
                return
            client = fresh
            if session_id:
                client = Client(http, fresh.url, self._place.fields, session_id)
                client.revision = fresh.revision
            first = await self._read(client)
            self._learn("by_hand", first.fact())
            self._learn("statuses", first.statuses)
            if not first.whole:
                return
            index = IndexLimits(pages_max=self._pages_max + 1)
            front = await stack.enter_async_context(gateway_before(self._place._replace(url=client.url), index))
            through = await stack.enter_async_context(aiohttp.ClientSession(connector=front.place.connector()))
            guarded = client.beside(through, front.place.url)
            for name in ("first", "again"):
                await self._filtered(name, guarded, front.app)
            made = await self._create(guarded, create, arguments) if create else None
            await asyncio.sleep(index.max_age)
            await self._filtered("later", guarded, front.app)
            second = await self._read(client)
            await self._compare(client, first, second, made)
            await self._others(http, client, fresh, second)

    async def _meet(self, client: Client) -> None:
        """Open a session: what the server says of itself."""
        try:
            said = await client.initialize()
        except NotAnswered as refused:
            raise await Mistake(client, self._place, "try").named(refused) from None
        about, can = (object_of(said.get(name)) for name in ("serverInfo", "capabilities"))
        self._learn("revision", client.revision)
        self._learn("server", {name: str(about.get(name) or "") for name in ("name", "version")})
        self._learn("tasks", can.get("tasks"))
        declared = object_of(can.get("tasks")).get("list")
        self.known["lists"] = declared is not None
        self.known["filters"] = None
        if "filter" in object_of(declared):
            self._learn("filters", "declared")
        words = "opened, deleted in the end" if client.session_id else "none: the server gives no session id"
        self._learn("session", "one process is one session" if self._place.socket else words)

    async def _read(self, client: Client) -> ByHand:
        """The whole list by hand, or as many pages as are allowed."""
        before, params = client.received_bytes, dict[str, Any]()
        tasks: list[TaskFields] = []
        pages: list[int] = []
        cursor: Any = None
        try:
            while len(pages) < self._pages_max:
                found, cursor, _ = await client.page(params)
                tasks += found
                pages.append(len(found))
                self._shown(f"page {len(pages):,}, {len(tasks):,} tasks")
                if cursor is None or cursor == params.get("cursor"):
                    break
                params = {"cursor": cursor}
        finally:
            self._shown("")
        return ByHand(tasks, pages, client.received_bytes - before, cursor is None)

    async def _filtered(self, name: str, client: Client, app: App) -> None:
        """The unfinished tasks, asked of the gateway: what they cost."""
        before, asked = client.received_bytes, app.asked
        self.unfinished, _, total = await client.page(CRITERIA)
        self._learn(name, {"bytes": client.received_bytes - before, "tasks": total, "asked": app.asked - asked})

    async def _create(self, client: Client, tool: str, arguments: dict[str, Any]) -> str:
        """Have a task made. Returns its id."""
        made = await client.ask("tools/call", {"name": tool, "arguments": arguments, "task": {}})
        task_id = object_of(made.get("task")).get("taskId")
        if not isinstance(task_id, str):
            raise NotAnswered(f"the tool {tool} made no task: it answered at once")
        return task_id

    async def _compare(self, client: Client, first: ByHand, second: ByHand, made: str | None) -> None:
        """What two readings, one before and one after the filtered lists, say together."""
        changed = facts.has_changed(first, second)
        if made is not None:
            got = True
            try:
                await client.ask("tasks/get", {"taskId": made})
            except NotAnswered:
                got = False
            self._learn("created", {"id": made, "listed": made in second.by_id, "got": got})
        self._learn("change", changed or made is not None)
        if changed:
            self._learn("by_hand_later", second.fact())
            self._learn("statuses", second.statuses)
        self._learn("order", facts.order(first, second))
        self._learn("may_be_cut", len(second.pages) == 1 and second.pages[0] in facts.CUTS)
        self._learn("instants_move", facts.instants_move(first, second))
        found = [await self._agrees(client, task) for task in facts.samples(second)]
        self._learn("get_agrees", all(found) if found else None)
        await self._filters(client, second)
        same = not changed and made is None
        self._learn("gateway_agrees", self.known["later"]["tasks"] == len(second.unfinished) if same else None)

    async def _agrees(self, client: Client, task: TaskFields) -> bool:
        try:
            got = await client.ask("tasks/get", {"taskId": task.get("taskId")})
        except NotAnswered:
            return False
        return facts.agree(task, got, bool(self.known["instants_move"]))

    async def _filters(self, client: Client, listing: ByHand) -> None:
        """Whether the server filters by status without saying so: only a list of several statuses shows it."""
        statuses = {str(task.get("status")) for task in listing.tasks[: listing.pages[0]]}
        unsaid = False
        if len(statuses) > 1:
            status = min(statuses)
            with suppress(NotAnswered):  # a strict server refuses parameters that it does not know
                page = await client.page({"status": status})
                unsaid = {str(task.get("status")) for task in page.tasks} == {status}
        self._learn("filters", "unsaid" if unsaid else None)

    async def _others(self, http: aiohttp.ClientSession, client: Client, fresh: Client, listing: ByHand) -> None:
        """What a session sees that did not make the tasks."""
        if not client.session_id or self._place.socket:
            return
        seen = None
        async with Client(http, client.url, self._place.fields) as another:
            with suppress(NotAnswered):  # a server may open no second session
                if client is fresh:
                    await another.initialize()
                page = await (another if client is fresh else fresh).page({})
                seen = facts.seen_by_others(listing, page.tasks)
        self._learn("others_see", seen)


class Mistake:
    """What went wrong in the first minute, in words of its own. `command` is that of taskgate that asked."""

    def __init__(self, client: Client, place: Target, command: str) -> None:
        self._client = client
        self._place = place
        self._command = command

    async def named(self, refused: NotAnswered) -> NotAnswered:
        """The error that says what to do."""
        if self._place.socket is not None or not refused.status or refused.status == 300:
            return refused
        url = self._client.url
        if refused.status in (401, 403):
            who = await self._authority(refused)
            return NotAnswered(f"{url} asks for a login ({refused.status}). {who}", refused.status)
        if await self._is_next(url):
            return NotAnswered(f"{url} speaks {_NEXT} alone, which has no tasks/list: taskgate does nothing there", 200)
        if refused.code:
            return refused
        found = [each for path in PATHS if (each := str(URL(url).with_path(path))) != url and await self._is_mcp(each)]
        if found:
            there = " or ".join(f"taskgate {self._command} {each}" for each in found)
            return NotAnswered(f"{url} is not MCP, but another path of it is: {there}", refused.status)
        for old, where in ((url, ""), (str(URL(url).with_path("/sse")), " is not MCP, but /sse there")):
            if await self._is_old(old):
                return NotAnswered(f"{url}{where} {_OLD}", refused.status)
        return NotAnswered(f"{refused}\nThis is not MCP over HTTP, nor is {', '.join(PATHS)} there.", refused.status)

    async def _is_mcp(self, url: str) -> bool:
        """Whether an MCP server is at another path."""
        try:
            async with asyncio.timeout(MISTAKE_S), Client(self._client.http, url, self._place.fields) as client:
                await client.initialize()
        except (NotAnswered, TimeoutError) as refused:
            return isinstance(refused, NotAnswered) and refused.status in (401, 403)
        return True

    async def _is_old(self, url: str) -> bool:
        """Whether this is the stream of the transport of 2024-11-05, by its first event."""
        fields, http = {**self._place.fields, "Accept": "text/event-stream"}, self._client.http
        with suppress(aiohttp.ClientError, TimeoutError):
            async with asyncio.timeout(MISTAKE_S), http.get(url, headers=fields, allow_redirects=False) as response:
                if response.status == 200 and response.content_type == "text/event-stream":
                    async for event in events(response):
                        if event.data is not None:
                            return event.is_endpoint
        return False

    async def _is_next(self, url: str) -> bool:
        """Whether this server speaks revision 2026-07-28."""
        meta = {"io.modelcontextprotocol/protocolVersion": _NEXT, "io.modelcontextprotocol/clientCapabilities": {}}
        client = Client(self._client.http, url, {**self._place.fields, "Mcp-Method": "server/discover"})
        client.revision = _NEXT
        try:
            async with asyncio.timeout(MISTAKE_S):
                return _NEXT in (await client.ask("server/discover", {"_meta": meta})).get("supportedVersions", [])
        except (NotAnswered, TimeoutError):
            return False

    async def _authority(self, refused: NotAnswered) -> str:
        """Which authorization server gives a token, and how to bring it."""
        url = URL(self._client.url)
        said = _METADATA.search(refused.fields.get("WWW-Authenticate", ""))
        places = [said[1]] if said else [str(url.with_path(_WELL_KNOWN + path)) for path in (url.path, "")]
        servers: list[str] = []
        for place in places:
            try:
                async with self._client.http.get(place, allow_redirects=False) as response:
                    document = json.loads(await response.content.read(_DOCUMENT_BYTES_MAX))
                servers += map(str, object_of(document).get("authorization_servers") or [])
            except (aiohttp.ClientError, TimeoutError, ValueError):
                continue
        who = f"Its authorization server is {servers[0]}." if servers else "It does not say which server gives tokens."
        return f"{who} Bring a token: --header-file FILE, with a line Authorization: Bearer TOKEN"
