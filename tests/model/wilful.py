"""Faults put into the gateway on purpose: a test that cannot fail proves nothing.

In: nothing. Out: contexts in which the gateway has one fault in how it refreshes. Always: the fault is a plausible
one, of a line or two; everything else is the gateway as it is.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from unittest.mock import patch

import msgspec

from gateway.errors import UpstreamBroken
from gateway.identity import Key
from gateway.mcp import jsonrpc, observe
from gateway.mcp.task import Task
from gateway.tasks import freshness, knowledge, passing, sessions
from gateway.tasks import notes as noting
from gateway.tasks.asks import Ask
from gateway.tasks.index import Index
from gateway.tasks.notes import Notes
from gateway.tasks.passing import PLAIN, Access, Heard, Pending, RequestKind
from gateway.tasks.refreshes import Crawl
from gateway.tasks.sessions import Life, Session, Sessions

_message, _legible, _access_after = Pending.message, jsonrpc.legible, passing.access_after
_plan, _live = freshness.plan, Index.live
_contradicts, _supersedes = knowledge._contradicts, Task.supersedes
_find_gone, _take, _crawl, _open = Notes.find_gone, Session.take, Crawl._ask_all, Sessions.open


def never_looks() -> AbstractContextManager[Any]:
    """The page where new tasks appear is never looked at."""

    def plan(*given: Any) -> freshness.Plan:
        return msgspec.structs.replace(_plan(*given), look=False)

    return patch.object(freshness, "plan", plan)


def input_required_is_settled() -> AbstractContextManager[Any]:
    """Of the live tasks only those that work are asked for."""

    def live(index: Index, *given: Any) -> Iterator[list[str]]:
        for some in _live(index, *given):
            yield [i for i in some if (task := index.get(i)) is not None and task.status == "working"]

    return patch.object(Index, "live", live)


def no_tombstones() -> AbstractContextManager[Any]:
    """What was found to be gone is not remembered as gone."""

    def find_gone(notes: Notes, task_id: str, now: float) -> None:
        with patch.object(noting, "NOTED_ID_CHARS_MAX", -1):
            _find_gone(notes, task_id, now)

    return patch.object(Notes, "find_gone", find_gone)


def reports_count_from_their_arrival() -> AbstractContextManager[Any]:
    """A report confirms a task from when it came, not from when it was asked for."""

    def take(
        session: Session, observation: observe.Observation, asked_at: float | None, now: float, *given: Any
    ) -> None:
        _take(session, observation, None if asked_at is None else now, now, *given)

    return patch.object(Session, "take", take)


def crawls_count_from_their_end() -> AbstractContextManager[Any]:
    """A crawl confirms all tasks from when it ended, not from when it began."""

    async def crawl(refresh: Crawl) -> None:
        await _crawl(refresh)
        known = refresh._session.known
        known.pages_as_of = known.new_as_of = known.live_as_of = asyncio.get_running_loop().time()

    return patch.object(Crawl, "_ask_all", crawl)


def no_full_crawls() -> AbstractContextManager[Any]:
    """`full_crawl_interval` is ignored."""

    def plan(known: Any, index: Any, query: Any, came_at: float, ages: freshness.Ages) -> freshness.Plan:
        return _plan(known, index, query, came_at, freshness.Ages(ages.max_age_s, float("inf")))

    return patch.object(freshness, "plan", plan)


def deaf_to_notifications() -> AbstractContextManager[Any]:
    """Notifications are not observed."""
    return patch.object(observe, "of_notification", lambda _: None)


def the_last_report_wins() -> AbstractContextManager[Any]:
    """A report replaces what is known, even if it is older."""
    return patch.object(knowledge, "_contradicts", lambda *_: False)


def the_last_report_wins_a_tie() -> AbstractContextManager[Any]:
    """Of two reports of one instant the one that came last is believed."""

    def contradicts(report: Task, before: Task | None) -> bool:
        return _contradicts(report, before) and before is not None and before.updated.at != report.updated.at

    return patch.object(knowledge, "_contradicts", contradicts)


def the_later_timestamp_wins() -> AbstractContextManager[Any]:
    """Of two reports the one with the later timestamp is believed, though the other was asked for later."""

    def supersedes(report: Task, known: Task) -> bool:
        return _supersedes(report, known) and (report.updated.at >= known.updated.at or report.is_terminal)

    return patch.object(Task, "supersedes", supersedes)


def no_state_is_final() -> AbstractContextManager[Any]:
    """A state that is older follows a terminal one."""
    return patch.object(Task, "supersedes", lambda *_: True)


@contextmanager
def whoever_leaves_ends_it() -> Iterator[None]:
    """What several queries wait for ends with the first of them that leaves, not with the last."""
    join = Ask.join

    async def join_alone(ask: Ask, outbox: Any) -> None:
        task = ask._task
        try:
            await join(ask, outbox)
        except asyncio.CancelledError:
            assert ask._task is not None
            ask.end()
            ask._task.cancel()
            raise
        if task is not None and task.cancelled():
            raise UpstreamBroken("it ended with the one who left")

    with patch.object(Ask, "join", join_alone):
        yield


@contextmanager
def a_refused_caller_keeps_a_place() -> Iterator[None]:
    """A session has a place as soon as its caller asks. After a refusal it is emptied, and stays."""

    def open_stored(sessions: Sessions, key: Key) -> Session:
        session = _open(sessions, key)
        if session.life is Life.PROVISIONAL:
            sessions.admit(session)
        return session

    def drop(sessions: Sessions, key: Key) -> None:
        if (session := sessions.find(key)) is not None:
            session.clear(asyncio.get_running_loop().time())

    with patch.object(Sessions, "open", open_stored), patch.object(Sessions, "drop", drop):
        yield


def deaf_to_what_was_not_read() -> AbstractContextManager[Any]:
    """The response to a request that was not read, or is unknown, says nothing."""

    def message(pending: Pending, data: bytes) -> Heard:
        unread = pending.kind in (RequestKind.UNREAD, RequestKind.RESUMED)
        return _message(PLAIN if unread else pending, data)

    return patch.object(Pending, "message", message)


def numbers_that_json_lacks_are_no_json() -> AbstractContextManager[Any]:
    """A response with NaN in it is not read."""
    return patch.object(jsonrpc, "finite", lambda data, sized=False: data)


def null_is_shown_unasked() -> AbstractContextManager[Any]:
    """A task that passed with NaN in it is shown with null, and not asked for."""
    return patch.object(passing, "_with_doubts", lambda heard: heard)


def what_is_no_utf_8_is_no_json() -> AbstractContextManager[Any]:
    """A response that is no UTF-8 is not read."""
    return patch.object(jsonrpc, "replaced", lambda _: None)


def the_replacement_is_shown_unasked() -> AbstractContextManager[Any]:
    """A task that passed with bytes that are no UTF-8 is shown with U+FFFD, and not asked for."""
    return patch.object(passing, "_illegible", lambda heard, data: heard._replace(seen=data))


def a_byte_order_mark_is_no_json() -> AbstractContextManager[Any]:
    """A response behind a byte order mark is not read."""
    return patch.object(jsonrpc, "legible", lambda data: data if data.startswith(b"\xef\xbb\xbf") else _legible(data))


def what_cannot_be_read_says_nothing() -> AbstractContextManager[Any]:
    """A response that is no JSON puts nothing in doubt."""
    return patch.object(jsonrpc, "looks_like_messages", lambda _: False)


def _after(status: int, access: Access) -> AbstractContextManager[Any]:
    """A status makes something else of what is known."""

    def access_after(given: int, *others: Any) -> Access:
        return access if given == status else _access_after(given, *others)

    return patch.object(sessions, "access_after", access_after)


def a_403_erases() -> AbstractContextManager[Any]:
    """A 403 drops the index, whatever was asked for."""
    return _after(403, Access.DROPPED)


def a_403_hides_nothing() -> AbstractContextManager[Any]:
    """A 403 changes nothing."""
    return _after(403, Access.KEPT)


def a_429_erases() -> AbstractContextManager[Any]:
    """A 429 drops the index."""
    return _after(429, Access.DROPPED)


OF_WHAT_IS_HEARD: Final = (
    deaf_to_what_was_not_read,
    numbers_that_json_lacks_are_no_json,
    null_is_shown_unasked,
    what_is_no_utf_8_is_no_json,
    the_replacement_is_shown_unasked,
    a_byte_order_mark_is_no_json,
    what_cannot_be_read_says_nothing,
    a_403_erases,
    a_403_hides_nothing,
    a_429_erases,
)
FAULTS: Final = (
    *OF_WHAT_IS_HEARD,
    never_looks,
    input_required_is_settled,
    no_tombstones,
    reports_count_from_their_arrival,
    crawls_count_from_their_end,
    no_full_crawls,
    deaf_to_notifications,
    the_last_report_wins,
    the_last_report_wins_a_tie,
    the_later_timestamp_wins,
    no_state_is_final,
    whoever_leaves_ends_it,
    a_refused_caller_keeps_a_place,
)
