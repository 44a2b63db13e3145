"""Requests of the gateway's own, in the name of the client whose query needs them: single, or page by page.

In: a caller, whose channel takes the requests. Out: JSON-RPC responses, and pages of tasks.
Always: the id of a request is unlike any client's. A crawl ends: a repeated cursor is an error; pages, and recoveries
from expired cursors, have limits (DESIGN 6).
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from itertools import count
from typing import Any, Final
from uuid import uuid4

import msgspec

from gateway.config import IndexLimits
from gateway.errors import UpstreamBroken, UpstreamFailed, UpstreamRefused, UpstreamTimeout
from gateway.mcp import jsonrpc, task, task_observations
from gateway.mcp.jsonrpc import Message
from gateway.mcp.task import Moment, Stamp, Task, TaskError, apart
from gateway.tasks.single_flight import begun
from gateway.tasks.transport_interfaces import Caller, Channel, Counts

_RECOVERIES_MAX: Final = 10  # from expired cursors, in one crawl
_CURSOR_CHARS_MAX: Final = 64 * 1024  # of the upstream's; four times the longest task id, which some have in them
_DROPS_MAX: Final = 1  # lost connections, for one request
_PAUSE_MIN_S: Final = 1.0  # before a request that was put off is sent again: `Retry-After` may be 0
TASKS_AT_ONCE: Final = 100  # handled before others get their turn

_ids = count()
OWN: Final = f"taskgate-{uuid4().hex}-"  # the ids of the gateway's own requests begin with it, and no others


class ListPage(msgspec.Struct):
    """One page of the upstream's `tasks/list`: its cursor, the next one, when it was asked for and came, its bytes."""

    raws: list[msgspec.Raw]  # of its tasks, until they are read
    cursor: str | None
    following: str | None
    told: Stamp
    size_bytes: int
    tasks: list[Task] = []


class Crawler:
    """Asks the upstream in the name of one caller. `requests` is the number of requests made.

    `refusals` are the statuses by which pages were refused, and single tasks that nothing puts off (plan_execution.py).
    """

    def __init__(
        self, caller: Caller, channel: Channel, limits: IndexLimits, counts: Counts, now: Callable[[], Moment]
    ) -> None:
        self._caller = caller
        self._channel = channel
        self._limits = limits
        self._counts = counts
        self._now = now
        self._loop = asyncio.get_running_loop()
        self.requests = 0
        self.refusals: list[int] = []
        self._resumes_at = 0.0  # since the upstream has put a request off
        self._one_at_a_time = asyncio.Lock()  # taken once it has

    async def pages(self, first_only: bool = False) -> AsyncGenerator[ListPage, None]:
        """Every page of the upstream's `tasks/list`, from the first to the last. Raises GatewayError.

        The next page is asked for before this one is read: the upstream works meanwhile.
        """
        cursor: str | None = None  # of the next page
        before: str | None = None  # of the page before it
        seen: set[int] = set()  # hashes: cursors may be long, and pages many
        recoveries, went_back, began = 0, False, self._now()
        asking = begun(self._ask_for_page(None))
        try:
            for count_left in range(self._limits.pages_max - 1, -1, -1):
                if (page := await asking) is None:
                    recoveries += 1
                    if recoveries > _RECOVERIES_MAX:
                        raise UpstreamBroken(f"cursors of the upstream's tasks/list expired {recoveries} times")
                    # The task that the cursor names has gone. The page before may give a fresh one; else start anew.
                    seen = set() if went_back else seen - {hash(cursor)}
                    cursor, went_back = None if went_back else before, not went_back
                else:
                    went_back = False
                    if hash(page.following) in seen:
                        raise UpstreamBroken("the upstream's tasks/list repeats a cursor: its pages have no end")
                    seen.add(hash(page.following))
                    before, cursor = cursor, page.following
                is_last = page is not None and (cursor is None or first_only)
                if count_left and not is_last:
                    asking = begun(self._ask_for_page(cursor))
                    await asyncio.sleep(0)  # it is under way
                if page is not None:
                    yield await self._read(page)
                if is_last:
                    return
            limit = f"index.pages_max ({self._limits.pages_max})"
            raise UpstreamBroken(f"the upstream's tasks/list has more pages than {limit}")
        finally:
            self._counts.crawl(self._caller.key.upstream, self._now().at - began.at)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            del asking  # as in `InFlight.join`

    async def page(self, cursor: str | None) -> ListPage | None:
        """The page at `cursor`; None if the cursor is no longer valid. Raises GatewayError."""
        page = await self._ask_for_page(cursor)
        return None if page is None else await self._read(page)

    async def _ask_for_page(self, cursor: str | None) -> ListPage | None:
        asked = self._now()
        response = await self.ask("tasks/list", {} if cursor is None else {"cursor": apart(cursor)})
        if bytes(response.error):
            if cursor is not None and jsonrpc.error_code(response) == jsonrpc.INVALID_PARAMS:
                return None
            raise UpstreamFailed(bytes(response.error))
        try:
            raws, following = task_observations.parse_page(response)
        except TaskError as error:
            raise _no_tasks(error) from None
        if following is not None and len(following) > _CURSOR_CHARS_MAX:
            raise UpstreamBroken(f"a cursor of the upstream's tasks/list has more than {_CURSOR_CHARS_MAX} characters")
        told = Stamp(asked, asked.order, self._now().order)
        return ListPage(raws, cursor, following, told, len(bytes(response.result)))

    async def _read(self, page: ListPage) -> ListPage:
        try:
            for start in range(0, len(page.raws), TASKS_AT_ONCE):
                if start:
                    await asyncio.sleep(0)
                page.tasks += map(task.parse, page.raws[start : start + TASKS_AT_ONCE])
        except TaskError as error:
            raise _no_tasks(error) from None
        page.raws = []
        self._counts.crawl_page(self._caller.key.upstream)
        return page

    async def ask(self, method: str, params: dict[str, Any]) -> Message:
        """The response to one request. Raises GatewayError; a JSON-RPC error is a response.

        A request that the upstream puts off (429 or 503 with `Retry-After`) is sent again when that is over, if
        `crawl_timeout` is not over by then. From then on the requests go one at a time.
        """
        message_id = f"{OWN}{next(_ids)}"
        request, raw_id = jsonrpc.request(message_id, method, params), b'"%b"' % message_id.encode()
        if not self._one_at_a_time.locked():
            answer = await self._ask(request, raw_id, method, self._loop.time())
            if answer is not None:
                return answer
        async with self._one_at_a_time:
            began_at, answer = self._loop.time(), None
            while answer is None:
                await asyncio.sleep(self._resumes_at - self._loop.time())
                answer = await self._ask(request, raw_id, method, began_at)
            return answer

    async def _ask(self, request: bytes, raw_id: bytes, method: str, began_at: float) -> Message | None:
        """The response to one request; None if it was put off, to `_resumes_at`."""
        timeout_s = self._limits.crawl_timeout
        ends_at = began_at + timeout_s
        for attempt in range(_DROPS_MAX + 1):
            self.requests += 1
            try:
                with self._counts.asking(self._caller.key.upstream, method):
                    async with asyncio.timeout_at(ends_at):
                        return await self._channel.ask(request, raw_id)
            except TimeoutError:
                within = f"within {timeout_s:g} s (index.crawl_timeout)"
                raise UpstreamTimeout(f"no answer to {method} from the upstream {within}") from None
            except UpstreamBroken:
                if attempt == _DROPS_MAX:
                    raise
            except UpstreamRefused as refused:
                if refused.retry_after_s is None:
                    if method == "tasks/list":
                        self.refusals.append(refused.status)
                    raise
                resumes_at = self._loop.time() + max(_PAUSE_MIN_S, refused.retry_after_s)
                if resumes_at >= ends_at:
                    raise
                self._resumes_at = max(self._resumes_at, resumes_at)
                return None
        raise AssertionError("unreachable")


def _no_tasks(error: TaskError) -> UpstreamBroken:
    return UpstreamBroken(f"the upstream's tasks/list is no list of tasks: {error}")
