"""Faults put into the gateway on purpose, a few words of the source each: a test that cannot fail proves nothing.

Above each stands what it breaks most often.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, TypeAlias
from unittest.mock import patch

from gateway.mcp import jsonrpc, observe
from gateway.owners.seen_ids import Owners
from gateway.refresh import freshness
from gateway.refresh.crawler import Crawler
from gateway.refresh.refreshes import Crawl, Refresh
from gateway.tasks import lifecycles, record, sessions
from gateway.tasks.in_flight import InFlight
from gateway.tasks.index import Index
from gateway.tasks.interception import Pending
from gateway.tasks.lifecycles import Lives
from gateway.tasks.record import Known, Marking, Marks, Record
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
        freshness, "plan", ("tail = not need.met(known.new_as_of)", "tail = False")
    ),
    # as of
    "of the live tasks only those that work are asked for": _edit(
        Index, "live", ("if status not in TERMINAL", 'if status == "working"')
    ),
    # as of
    "a crawl confirms all tasks from when it ended, not from when it began": _edit(
        Crawl, "_read_pages", ("told = Stamp(began,", "told = Stamp(self._sessions.now(),")
    ),
    # deleted
    "full_crawl_interval is ignored": _edit(
        freshness, "need_of", ("came.at - ages.full_crawl_interval_s", 'came.at - float("inf")')
    ),
    # failed
    "what several queries wait for ends with the first of them that leaves": _edit(
        InFlight, "join", ("if not task.cancelled():", "if True:"), ("if not self.outboxes:", "if True:")
    ),
    # failed
    "a request that was put off is not repeated": _edit(
        Crawler, "_ask", ("if refused.retry_after_s is None:", "if True:")
    ),
    # ---- what is marked ----
    # missing
    "notifications mark nothing": _put(observe, "of_notification", lambda _: None),
    # backwards
    "an answer that need not be read marks nothing": _put(Sessions, "name", lambda *_: None),
    # backwards
    "a mark is made at the request, not at the answer": _edit(
        Sessions, "observe", ("(said, asked, self.now())", "(said, asked, asked or self.now())")
    ),
    # backwards
    "an error marks nothing": _put(Record, "deny", lambda *_: None),
    # missing
    "a task that the index lacks is asked for only if a page shows it": _edit(
        Record, "due", ("(mark.seen or self.index.get(i))", "self.index.get(i)")
    ),
    # backwards
    "an error about a task that the index lacks marks nothing, though own requests are under way": _edit(
        Record, "deny", ("is_asking and", "False and")
    ),
    # stale
    "a client that is told the same renews the task as of when it is told": _edit(
        Marking, "renew", ("max(asked, task.told.as_of)", "now")
    ),
    # stale
    "a notification that says the same renews the task": _edit(
        Marking, "renew", ("task.told.as_of if asked is None", "now if asked is None")
    ),
    # missing
    "a result that makes a task marks nothing": _put(Record, "make", lambda *_: None),
    # match
    "the method of the request that made a task is forgotten": _edit(Record, "make", ("method=method", "method=None")),
    # missing
    "a renewed token finds no task again": _edit(Owners, "owners_of", ("if key.session:", "if False:")),
    # ---- which answer is newer ----
    # as of
    "of two answers that overlap the last one is believed": _edit(
        Record, "_take_again", ("if told.asked > before.told.came:", "if True:")
    ),
    # as of
    "two answers that overlap and differ mark nothing": _edit(
        Record, "listed", ("self.mark(task.id, now, first=_ALL)", "pass")
    ),
    # as of
    "only queries that come later wait for what answers that overlap leave open": _put(record, "_ALL", None),
    # ---- what is heard ----
    # missing
    "the response to a request that was not read, or is unknown, says nothing": _edit(
        Pending,
        "message",
        ("if self.kind is RequestKind.PLAIN:", "if self.kind.value in ('plain', 'unread', 'resumed'):"),
    ),
    # missing
    "what only the lenient reader reads says nothing": _edit(
        Pending, "message", ("if not message.is_response:", "if not (message.is_response and message.is_strict):")
    ),
    # backwards
    "a response that is no JSON puts nothing in doubt": _put(jsonrpc, "looks_like_messages", lambda _: False),
    # match
    "a 403 drops the index, whatever was asked for": _edit(*_ACCESS, ("_is_of_tasks(method)", "True")),
    # refused
    "a 403 hides nothing": _edit(*_ACCESS, ("if status == 403:", "if False:")),
    # refused
    "a 401 drops nothing": _edit(*_ACCESS, ("status == 401 or", "")),
    # refused
    "an answer to what was asked before a 403 ends it": _edit(
        Known, "accept", ("if asked > self.refused:", "if True:")
    ),
    # ---- what is counted ----
    # counts
    "late news of a task that has ended begins it again": _put(lifecycles, "_is_late", lambda *_: False),
    # counts
    "each session that sees a task counts it": _put(lifecycles, "_number", lambda key, task_id: hash((*key, task_id))),
    # counts
    "an answer that need not be read ends no task": _put(Lives, "name", lambda *_: None),
    # refused
    "an answer to a client ends a 403": _edit(
        Sessions, "name", ("now = self.now()", "now = self.now(); session.known.refused = 0")
    ),
}

RACES: Final[dict[str, Fault]] = {
    # missing
    "a 429 drops the index": _edit(*_ACCESS, ("if status == 401", "if status in (401, 429)")),
    # missing
    "a new session finds no task again": _edit(Owners, "owners_of", ("if key.has_credentials", "if False")),
    # backwards
    "a page that passes marks nothing": _edit(observe, "_of_tasks", ("[*map(_state, raws)]", "[]")),
    # missing
    "a task that a crawl omits is gone": _edit(Crawl, "_forget_unseen", ("if may_be_there:", "if False:")),
    # missing
    "another life of an id is the same task": _edit(
        Record, "_take_again", ("if before.created != task.created or (", "if (")
    ),
    # backwards
    "an answer settles a mark that came after its request": _edit(
        Marks, "settle", ("if asked > mark.last:", "if True:")
    ),
    # backwards
    "an answer to what was asked before a 401 counts": _edit(Refresh, "_check_same", ("raise Forgotten", "pass")),
}
"""Faults that show only where answers overlap: none of the first 200 usual histories finds one of them."""
