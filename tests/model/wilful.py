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
from gateway.tasks import freshness, sessions
from gateway.tasks.asks import Ask
from gateway.tasks.crawler import Crawler
from gateway.tasks.index import Index
from gateway.tasks.passing import Pending
from gateway.tasks.record import Marks, Record
from gateway.tasks.refreshes import Crawl, Refresh
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
        freshness, "plan", ("look = not need.met(known.new_as_of)", "look = False")
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
        Ask, "join", ("if not task.cancelled():", "if True:"), ("if not self.outboxes:", "if True:")
    ),
    # missing
    "a session has a place before its caller was answered": _edit(
        Sessions, "using", ("session.queries += 1", "session.queries += 1; self._store(session)")
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
    "an error marks nothing": _put(Record, "deny", lambda *_: None),
    # missing
    "a task that the index lacks is asked for only if a page shows it": _edit(
        Record, "due", ("(mark.seen or self.index.get(i))", "self.index.get(i)")
    ),
    # ---- what is heard ----
    # missing
    "the response to a request that was not read, or is unknown, says nothing": _edit(
        Pending,
        "message",
        ("if self.kind is RequestKind.PLAIN:", "if self.kind.value in ('plain', 'unread', 'resumed'):"),
    ),
    # missing
    "a response with NaN is not read": _put(jsonrpc, "finite", lambda data, sized=False: data),
    # missing
    "a response that is no UTF-8 is not read": _put(jsonrpc, "replaced", lambda _: None),
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
    "a page that passes marks nothing": _edit(observe, "_of_tasks", ("[*map(_state, raws)]", "[]")),
    # missing
    "a task that a crawl omits is gone": _edit(Crawl, "_forget_unseen", ("if may_be_there:", "if False:")),
    # match
    "the method of the request that made a task is forgotten": _edit(Record, "make", ("method=method", "method=None")),
    # backwards
    "an answer settles a mark that came after its request": _edit(
        Marks, "settle", ("if asked > mark.last:", "if True:")
    ),
    # backwards
    "an answer to what was asked before a 401 counts": _edit(Refresh, "_check_same", ("raise Forgotten", "pass")),
    # backwards
    "a mark is made at the request, not at the answer": _edit(
        Sessions, "observe", ("session.hear(said, asked, self.now())", "session.hear(said, asked, asked or self.now())")
    ),
}
"""Faults that show only where answers overlap: none of the first 200 usual histories finds one of them."""
