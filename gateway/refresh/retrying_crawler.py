"""Requests of the gateway's own, in the name of the client whose query needs them: single, or page by page.

In: a session, and a channel that takes the requests. Out: JSON-RPC responses, and pages of tasks.
Always: the id of a request is none that the client has out. A crawl ends: a repeated cursor is an error, or the end if
it is empty; pages, and recoveries from refused cursors, have limits (DESIGN 6.11).
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from secrets import randbelow
from typing import Any, Final

import msgspec

from gateway.config import IndexLimits
from gateway.errors import UpstreamBroken, UpstreamFailed, UpstreamRefused, UpstreamTimeout
from gateway.mcp import jsonrpc, task, task_observations
from gateway.mcp.jsonrpc import Message
from gateway.mcp.task import Stamp, Task, TaskError, to_encode
from gateway.tasks.session_indexes import Session, Sessions
from gateway.tasks.single_flight import begun
from gateway.tasks.transport_interfaces import Channel, Counts

_RECOVERIES_MAX: Final = 10  # from refused cursors, in one crawl
_REFUSALS_MAX: Final = 2  # ... of one: the page before it is read again, then all pages
_EMPTY: Final = ""  # a cursor like any other; some servers write it for the end
_CURSOR_CHARS_MAX: Final = 64 * 1024  # of the upstream's; four times the longest task id, which some have in them
_PUTS_OFF: Final = (429, 503)  # statuses that say nothing of what was asked
_DROPS_MAX: Final = 1  # lost connections, for one request
_PAUSE_MIN_S: Final = 1.0  # before a request that was put off is sent again: `Retry-After` may be 0
_BUSY: Final = (409, 429, 503)  # statuses of servers that are busy with another request of the session ...
_BUSY_S: Final = 0.1  # ... and the pause before this one is sent again
TASKS_AT_ONCE: Final = 100  # handled before others get their turn

_FIRST_ID: Final = 2_000_000_000  # no client counts so far, and some servers read no integer beyond 31 bits
_IDS: Final = 2**31 - _FIRST_ID


class RequestIds:
    """The ids of the gateway's own requests: integers, for some servers read no others. Each process has its own."""

    def __init__(self) -> None:
        self._start, self._used = randbelow(_IDS), 0

    def next(self) -> int:
        self._used += 1
        return _FIRST_ID + (self._start + self._used) % _IDS

    def has(self, number: int | None) -> bool:
        """Whether `next` has returned this number."""
        if number is None or not 0 <= number - _FIRST_ID < _IDS:
            return False
        return 0 < (number - _FIRST_ID - self._start) % _IDS <= self._used


REQUEST_IDS: Final = RequestIds()


class ListPage(msgspec.Struct):
    """One page of the upstream's `tasks/list`: its cursor, the next one, when it was asked for and came, its bytes."""

    raws: list[msgspec.Raw]  # of its tasks, until they are read
    cursor: str | None
    following: str | None
    told: Stamp
    size_bytes: int
    tasks: list[Task] = []
    is_behind_end: bool = False  # for an empty cursor the list has begun again


@dataclass(eq=False)
class Crawler:
    """Asks the upstream in the name of one caller."""

    _channel: Channel
    limits: IndexLimits  # those in force when its query came
    _counts: Counts
    _sessions: Sessions
    _session: Session
    requests: int = 0  # that were made
    ends_empty: bool = False  # the list that was read has an empty cursor for its end
    _refused_with: str = ""  # the last cursor
    _resumes_at: float = 0.0  # since the upstream has put a request off
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)  # taken once it has
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    async def pages(self, first_only: bool = False) -> AsyncGenerator[ListPage, None]:
        """Every page of the upstream's `tasks/list`, from the first to the last. Raises GatewayError.

        The next page is asked for before this one is read: the upstream works meanwhile.
        """
        cursor: str | None = None  # of the next page
        before: str | None = None  # of the page before it
        seen: set[int] = set()  # hashes: cursors may be long, and pages many
        refused = Counter[int]()  # cursors, the same
        began, asking = self._sessions.now(), begun(self._ask_for_page(None))
        try:
            for count_left in range(self.limits.pages_max - 1, -1, -1):
                page, is_last = await asking, False
                if page is not None:
                    repeats = hash(page.following) in seen
                    page.is_behind_end = repeats and hash(_EMPTY) in seen
                    if repeats and not page.is_behind_end:
                        raise UpstreamBroken("the upstream's tasks/list repeats a cursor: its pages have no end")
                    seen.add(hash(page.following))
                    before, cursor = cursor, page.following
                    is_last = cursor is None or first_only or page.is_behind_end
                else:
                    refused[hash(cursor)] += 1
                    if cursor == _EMPTY:
                        is_last = refused[hash(cursor)] > 1
                    else:
                        seen.discard(hash(cursor))
                        if (cursor := self._back(cursor, before, refused)) is None:
                            seen.clear()
                if count_left and not is_last:
                    asking = begun(self._ask_for_page(cursor))
                    await asyncio.sleep(0)  # it is under way
                if page is not None:
                    yield await self._read(page)
                if is_last:
                    self.ends_empty = page is None or page.is_behind_end
                    return
            limit = f"index.pages_max ({self.limits.pages_max})"
            raise UpstreamBroken(f"the upstream's tasks/list has more pages than {limit}")
        finally:
            self._counts.crawl(self._session.key.upstream, self._sessions.now().at - began.at)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            del asking  # as in `InFlight.join`

    def _back(self, cursor: str | None, before: str | None, refused: Counter[int]) -> str | None:
        """The cursor to go on with where one was `refused`: it has expired, or that was a failure. Raises GatewayError.

        The page before it may give a fresh one; else the list is begun anew.
        """
        if refused[hash(cursor)] > _REFUSALS_MAX or refused.total() > _RECOVERIES_MAX:
            times = f"{refused.total()} times, at last with {self._refused_with}"
            raise UpstreamBroken(f"the upstream has refused cursors of its own tasks/list {times}")
        return before if refused[hash(cursor)] == 1 and before != cursor else None

    async def page(self, cursor: str | None) -> ListPage | None:
        """The page at `cursor`; None if the upstream refuses the cursor. Raises GatewayError."""
        page = await self._ask_for_page(cursor)
        return None if page is None else await self._read(page)

    async def _ask_for_page(self, cursor: str | None) -> ListPage | None:
        asked = self._sessions.now()
        try:
            response = await self.ask("tasks/list", {} if cursor is None else {"cursor": to_encode(cursor)})
        except UpstreamRefused as refused:
            said = f"status {refused.status}"  # a busy server's, and again: no end of a list
            is_busy = cursor == _EMPTY and refused.status in _BUSY and said == self._refused_with
            if cursor is not None and refused.status >= 400 and refused.status not in _PUTS_OFF and not is_busy:
                self._refused_with = said
                return None
            raise
        if bytes(response.error):
            if cursor is None:
                raise UpstreamFailed(bytes(response.error))
            self._refused_with = f"error {jsonrpc.code_of(response.error)}"
            return None
        try:
            raws, following = task_observations.parse_page(response)
        except TaskError as error:
            raise _no_tasks(error) from None
        if following is not None and len(following) > _CURSOR_CHARS_MAX:
            raise UpstreamBroken(f"a cursor of the upstream's tasks/list has more than {_CURSOR_CHARS_MAX} characters")
        told = Stamp(asked, asked.order, self._sessions.now().order)
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
        self._counts.crawl_page(self._session.key.upstream)
        return page

    async def ask(self, method: str, params: dict[str, Any]) -> Message:
        """The response to one request. Raises GatewayError; a JSON-RPC error is a response."""
        try:
            return await self._ask_until_taken(method, params)
        except UpstreamRefused as refused:
            if refused.is_of_caller and not (refused.status == 404 and "cursor" in params):  # else that may be stale
                self._sessions.refuse(self._session)
            raise

    async def _ask_until_taken(self, method: str, params: dict[str, Any]) -> Message:
        """The response to one request.

        The upstream may put it off: by `Retry-After`, or by 409, 429 or 503 while we ask other things in this session.
        It is sent again after that pause, unless `crawl_timeout` is over by then. While it waits, others do too.
        """
        message_id = REQUEST_IDS.next()
        while not self._channel.is_free(message_id):
            message_id = REQUEST_IDS.next()
        request = jsonrpc.request(message_id, method, params)
        if not self._one_at_a_time.locked():
            answer = await self._ask(request, message_id, method, self._loop.time())
            if answer is not None:
                return answer
        async with self._one_at_a_time:
            began_at, answer = self._loop.time(), None
            while answer is None:
                await asyncio.sleep(self._resumes_at - self._loop.time())
                answer = await self._ask(request, message_id, method, began_at)
            return answer

    async def _ask(self, request: bytes, message_id: int, method: str, began_at: float) -> Message | None:
        """The response to one request; None if it was put off, to `_resumes_at`."""
        session, timeout_s = self._session, self.limits.crawl_timeout
        ends_at = began_at + timeout_s
        for attempt in range(_DROPS_MAX + 1):
            self.requests += 1
            session.under_way, session.begun = session.under_way + 1, session.begun + 1
            is_alone, number = session.under_way == 1, session.begun
            try:
                with self._counts.asking(self._session.key.upstream, method):
                    async with asyncio.timeout_at(ends_at):
                        return await self._channel.ask(request, message_id)
            except TimeoutError:
                within = f"within {timeout_s:g} s (index.crawl_timeout)"
                raise UpstreamTimeout(f"no answer to {method} from the upstream {within}") from None
            except UpstreamBroken:
                if attempt == _DROPS_MAX:
                    raise
            except UpstreamRefused as refused:
                pause_s = refused.retry_after_s
                if pause_s is not None:
                    pause_s = max(_PAUSE_MIN_S, pause_s)
                elif refused.status in _BUSY and not (is_alone and session.begun == number):
                    pause_s = _BUSY_S  # it may serve one request of a session at a time
                else:
                    raise
                resumes_at = self._loop.time() + pause_s
                if resumes_at >= ends_at:
                    raise
                self._resumes_at = max(self._resumes_at, resumes_at)
                return None
            finally:
                session.under_way -= 1
        raise AssertionError("unreachable")


def _no_tasks(error: TaskError) -> UpstreamBroken:
    return UpstreamBroken(f"the upstream's tasks/list is no list of tasks: {error}")
