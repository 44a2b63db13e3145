"""Faults put into the gateway on purpose: a test that cannot fail proves nothing.

In: nothing. Out: by name, contexts in which the gateway has one fault in how it refreshes or in what it hears. Always:
the fault is a plausible one, a few words of the source; everything else is the gateway as it is. Above each stands what
it breaks most often.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, TypeAlias
from unittest.mock import patch

from gateway.mcp import jsonrpc, observe
from gateway.mcp.task import Task
from gateway.tasks import freshness, knowledge, passing, sessions
from gateway.tasks import notes as noting
from gateway.tasks.asks import Ask
from gateway.tasks.crawler import Crawler
from gateway.tasks.index import Index
from gateway.tasks.knowledge import Record
from gateway.tasks.passing import Pending
from gateway.tasks.refreshes import Crawl
from gateway.tasks.sessions import Sessions
from tests.edits import edited

Fault: TypeAlias = Callable[[], AbstractContextManager[Any]]


def _edit(where: object, name: str, *changes: tuple[str, str]) -> Fault:
    return partial(edited, where, name, *changes)


def _put(where: object, name: str, new: object) -> Fault:
    return lambda: patch.object(where, name, new)


_ACCESS: Final = (sessions, "access_after")
FAULTS: Final[dict[str, Fault]] = {
    # ---- what is asked, and when ----
    # late
    "the page where new tasks appear is never looked at": _edit(
        freshness, "plan", ("look = known.new_as_of < oldest", "look = False")
    ),
    # as of
    "of the live tasks only those that work are asked for": _edit(
        Index, "live", ("if status not in TERMINAL", 'if status == "working"')
    ),
    # failed
    "what was found to be gone is not remembered as gone": _put(noting, "NOTED_ID_CHARS_MAX", -1),
    # backwards
    "a report confirms a task from when it came, not from when it was asked for": _edit(
        Record, "take", ("self._report(task, asked_at, now,", "self._report(task, asked_at and now, now,")
    ),
    # as of
    "a crawl confirms all tasks from when it ended, not from when it began": _edit(
        Crawl, "_read_pages", (".end_crawl(began_at,", ".end_crawl(self._clock(),")
    ),
    # deleted
    "full_crawl_interval is ignored": _edit(
        freshness, "plan", ("came_at - ages.full_crawl_interval_s", 'came_at - float("inf")')
    ),
    # failed
    "what several queries wait for ends with the first of them that leaves": _edit(
        Ask, "join", ("if not task.cancelled():", "if True:"), ("if not self.outboxes:", "if True:")
    ),
    # missing
    "a session has a place before its caller was answered": _edit(
        Sessions, "open", ("if session.life is not Life.PROVISIONAL:", "if True:")
    ),
    # failed
    "a request that was put off is not repeated": _edit(
        Crawler, "_ask", ("if refused.retry_after_s is None:", "if True:")
    ),
    # ---- which report is believed ----
    # missing
    "notifications are not observed": _put(observe, "of_notification", lambda _: None),
    # backwards
    "a report replaces what is known, though it be older": _put(knowledge, "_contradicts", lambda *_: False),
    # backwards
    "of two reports of one instant the one that came last is believed": _edit(
        knowledge, "_contradicts", ("before.updated >= report.updated", "before.updated > report.updated")
    ),
    # backwards
    "of two reports the one with the later timestamp is believed, though the other was asked for later": _edit(
        Task,
        "supersedes",
        ("not other.is_terminal or", "other.updated <= self.updated and not other.is_terminal or"),
    ),
    # backwards
    "an older report replaces a final state": _put(Task, "supersedes", lambda *_: True),
    # ---- what is heard ----
    # missing
    "the response to a request that was not read, or is unknown, says nothing": _edit(
        Pending,
        "message",
        ("if self.kind is RequestKind.PLAIN:", "if self.kind.value in ('plain', 'unread', 'resumed'):"),
    ),
    # missing
    "a response with NaN is not read": _put(jsonrpc, "finite", lambda data, sized=False: data),
    # content
    "a task that passed with NaN is shown with null, and not asked for": _put(
        passing, "_with_doubts", lambda heard: heard
    ),
    # missing
    "a response that is no UTF-8 is not read": _put(jsonrpc, "replaced", lambda _: None),
    # content
    "a task that passed with bytes that are no UTF-8 is shown with U+FFFD, and not asked for": _edit(
        passing, "_illegible", ("jsonrpc.REPLACEMENT in task.raw", "False")
    ),
    # missing
    "a response behind a byte order mark is not read": _edit(
        jsonrpc, "legible", ('data = b"   " + data[len(_BOM) :]', "return data")
    ),
    # backwards
    "a response that is no JSON puts nothing in doubt": _put(jsonrpc, "looks_like_messages", lambda _: False),
    # missing
    "a 403 drops the index, whatever was asked for": _edit(*_ACCESS, ("_is_of_tasks(method)", "True")),
    # refused
    "a 403 hides nothing": _edit(*_ACCESS, ("if status == 403:", "if False:")),
    # missing
    "a 429 drops the index": _edit(*_ACCESS, ("if status == 401", "if status in (401, 429)")),
}

RACES: Final[dict[str, Fault]] = {
    # backwards
    "of two answers that overlap the one that came last is believed": _edit(
        knowledge.Knowledge, "may_be_old", ("asked_at <= max(told_at, self.page_came_at)", "False")
    ),
    # missing
    "a page of a crawl replaces what passed while it was on its way": _edit(
        Record, "_judge", ("note.at <= came_at and not unclear", "True")
    ),
    # backwards
    "an answer settles a hint that came after its request": _edit(
        noting.Notes, "settle", ("note.hinted_at <= asked_at", "True")
    ),
    # refused
    "an answer to what was asked before a 403 shows what that hides": _edit(
        knowledge.Knowledge, "accept", ("asked_at > self.refused_at", "True")
    ),
}
"""Faults that show only where answers overlap: none of the first 200 usual histories finds one of them."""
