"""Faults put into the gateway on purpose, each named by what it does, and where it is put in (`tests/edits.py`)."""

from typing import Final

from tests.edits import faults

FAULTS: Final = faults({
    # ---- what is asked, and when ----
    "the page where new tasks appear is never looked at": (r"not \w+\.met\(\w+\.new_as_of\)", "False"),
    "of the live tasks only those that work are asked for": (r"if status not in TERMINAL\b", 'if status == "working"'),
    "a crawl confirms all tasks from when it ended, not from when it began": (
        r"(?<=\()began,(?= began\.order)", "self._sessions.now(),"
    ),
    "full_crawl_interval is ignored": (r"(?<=came\.at - )full_crawl_interval_s", 'float("inf")'),
    "what several queries wait for ends with the first of them that leaves": (
        r"(?<=if )not task\.cancelled\(\)(?=:)", "True",
        r"(?<=if )not self\.\w+(?=:\n\s+self\.end\(\)\n\s+task\.cancel)", "True"
    ),
    "a request that was put off is not repeated": (r"(?<=pause_s = )refused\.retry_after_s", "None"),
    # ---- what is marked ----
    "notifications mark nothing": (r"\w+\.of_notification\(\w+\)", "None"),
    "an answer to a client marks nothing": (r"(?<=for task, raw in )said\.shown(?=:\n\s+if said\.is_told)", "()"),
    "a mark is made at the request, not at the answer": (
        r"(?<=self\._new\(key\), )self\.now\(\)", "asked or self.now()"
    ),
    "an error marks nothing": (r"is_known or (?=\(is_asking and )", "False and "),
    "an error about a task that the index lacks marks nothing, though own requests are under way": (
        r"\(is_asking and (?=len)", "(False and "
    ),
    "a task that the index lacks is asked for only if a page shows it": (
        r"\(\w+\.source or (self\.index\.get\(\w+\) is not None)\)", r"\1"
    ),
    "a client that is told the same renews the task as of when it is told": (r"max\(asked, \w+\.told\.as_of\)", "now"),
    "a notification that says the same renews the task": (r"\w+\.told\.as_of(?= if asked is None else)", "now"),
    "a result that makes a task marks nothing": (r"self\.mark\(said\.made, .*", "pass"),
    "the method of the request that made a task is forgotten": (r"(?<=order, method=)said\.method", "None"),
    "a new session finds no task again": (r"(?<=if )key\.has_credentials(?= and self\._limits)", "False"),
    "a renewed token finds no task again": (r"(?<=if )key\.session(?=:\n\s+owners\.)", "False"),
    # ---- which answer is newer ----
    "of two answers that overlap the last one is believed": (r"(?<=\]\[)told\.asked <= since\.came(?=\])", "False"),
    "two answers that overlap and differ mark nothing": (
        r"(?<=Change\.TAKE_AND_ASK\):)\s+self\.mark\(.*", " pass"
    ),
    "only queries that come later wait for what answers that overlap leave open": (
        r"(?<=Change\.TAKE_AND_ASK\):)(\s+self\.mark\(.*Stale\()ALL", r"\1now.order"
    ),
    # ---- what is heard ----
    "the response to a request that was not read, or is unknown, says nothing": (
        r"self\.kind == \"PLAIN\"(?=:\n\s+return )", "self.kind in ('PLAIN', 'UNREAD', 'RESUMED')"
    ),
    "what only the lenient reader reads says nothing": (
        r"(?<=if not )message\.is_response(?=:\n\s+is_told)", "(message.is_response and message.is_strict)"
    ),
    "a response that is no JSON puts nothing in doubt": (
        r"may_be\(data\)(?= else None)", "False"
    ),
    "a refusal drops the index": (r"(?=session\.record\.refused = self\.now)", "session.clear(); "),
    "a refusal hides nothing": (r"(?<=if )status in REFUSALS(?=:)", "False"),
    "an answer to what was asked before a refusal ends it": (
        r"(?<=max\(self\.accepted, )asked(?=\))", "asked, self.refused + 1"
    ),
    # ---- one odd message ----
    "one -32601 ends asking by id": (r"(?<=in _DENIALS\] == )_DOUBTED_TIMES", "1"),
    "-32601 ends asking by id for good": (r"now\.at \+ interval_s", 'float("inf")'),
    "any error about a task denies it": (r"code not in _DENIALS", "False"),
    "one denial takes a task away": (r"\*\(_DENIALS if may_be_there else \(\)\)", ""),
    "after one failure a task is left out": (r"(?<=stale\.failed >= )FAILURES_MAX", "1"),
    "one denial takes away what a query names": (r"(?<=may_be_there = )known is None or ", "known is not None and "),
    "one denial takes away what another session has shown": (r"(?<=None or known\.raw) or known\.stale", ""),
    "what was put off is never asked for again": (r"stale\.blocks_from = ALL", "pass"),
    "a 404 to a client ends its session": (
        r"self\._sessions\.refuse\(self\._sessions\.find\(caller\.key\)\)", "self._sessions.drop_all(caller.key)"
    ),
    "an error that refuses a cursor fails the list": (r"(?<=if )cursor is None(?=:\n\s+raise UpstreamFailed)", "True"),
    "a status that refuses a cursor fails the list": (r"cursor is not None and refused\.status >= 400", "False"),
    "an empty cursor is always the end": (r"(?<=is_last = )cursor is None", "not cursor"),
    "an empty cursor is never the end": (r"(?<=if )cursor == _EMPTY(?=:)", "False"),
    "two tasks prove an order": (r"(?<=_instants < )INSTANTS_MIN", "2"),
    "empty and shorter pages prove an order": (r"page_size > 0 and self\._page_size in \(None, page_size\)", "True"),
    "a balancer's cookie tells who asks": (r"_OF_BALANCERS\.fullmatch\(pair\)", "False"),
    "a request beside others that is refused with 409 fails the list": (r"(?<=elif )refused\.status in _BUSY", "False"),
    "the gateway's requests have texts for ids": (r"(?<=jsonrpc\.request\()message_id", "str(message_id)"),
    # ---- what is whose ----
    "what is under way at a server writes of the one that takes its place": (
        r"ServerKey\(name, next\(_numbers\)\)", "ServerKey(name, 0)",
        r"self\._sweep_servers\(\)(?=\n\s+self\._listener\.heads\.end)",
        "self._sessions.forget(set(self._pools.servers))",
    ),
    "what is known of a server counts for the one that takes its place": (r"(?<=if )name not in changed(?=\})", "True"),
    "an empty credential is one": (r"_NO_TOKEN\.fullmatch\(value\.strip\(\)\)", "False"),
    # ---- what is counted ----
    "a result under an id that is given again begins no life": (
        r"(?<=elif )tool is not None(?=:.*\n\s+self\._lose\()", "False"
    ),
    "late news of a task that has ended begins it again": (
        r"(?<=if )is_made(:\n\s+return) before\.is_counted.*", r"True\1 False"
    ),
    "each session that sees a task counts it": (r"hash\(\(key\.server, task_id\)\)", "hash((*key, task_id))"),
    "an answer to a client ends no task": (r"(?<=for shown, raw in )said\.shown", "()"),
    "an answer to a client ends a refusal": (
        r"(?=index\.stamp\(known, )", "self.refused = 0; "
    ),
})  # fmt: skip

RACES: Final = faults({
    "a page that passes marks nothing": (r"\[\*map\(_state, \w+\)\]", "[]"),
    "a task that a crawl omits is gone": (r"(?<=if )may_be_there(?=:)", "False"),
    "another life of an id is the same task": (r"known\.created != shown\.created or ", ""),
    "an answer settles a mark that came after its request": (r"(?<= is None or )asked > stale\.invalidated", "True"),
})  # fmt: skip
"""Faults that show only where answers overlap: none of the first 200 usual histories finds one of them."""

STDIO: Final = faults({
    "a mark from before a crawl is forgotten where there seemed to be no tasks/get": (
        r"0 if self\.asks_by_id else (?=self\.crawled)", ""
    ),
    "a line of a log puts all in doubt": (
        r"jsonrpc\.may_be_messages\(line\.raw\)(?=:\n\s+return False)", "self._take_in(UNMATCHED.unread())"
    ),
})  # fmt: skip

FLEET: Final = faults({
    "a replica hears nothing from the others": (
        r"(?<=for update in )updates_in\(some\)(?=:\n\s+if update\.id is None)", "()"
    ),
    # A store that is back gets only what is new.
    "nothing is told again": (r"(?=for some_said in)", "return\n    "),
    "nobody tells that a task is gone": (
        r"(?<=if )now\.denied not in \(0, was\.denied\)(?=:)", "False",
        r"(?<=said\.denied is not None and )is_unknown(?=:)", "False",
    ),
    # The entries of a caller who is refused are dropped.
    "a refusal at one replica is one for all": (
        r"(?=session\.record\.refused = self\.now)", "self.replicas.ended({session.key}); "
    ),
})  # fmt: skip

FINDERS: Final[dict[str, int | str]] = {
    "a page that passes marks nothing": 181,
    "a task that a crawl omits is gone": 97,
    "another life of an id is the same task": 2,
    "an answer settles a mark that came after its request": 24,
    "the page where new tasks appear is never looked at": 11,
    "of the live tasks only those that work are asked for": 157,
    "a crawl confirms all tasks from when it ended, not from when it began": 23,
    "full_crawl_interval is ignored": 46,
    "what several queries wait for ends with the first of them that leaves": 33,
    "a request that was put off is not repeated": 3,
    "notifications mark nothing": 5,
    "a mark is made at the request, not at the answer": "a task is made while all pages are read",
    "an error marks nothing": 117,
    "an error about a task that the index lacks marks nothing, though own requests are under way": (
        "a task is gone, and a page that was read before comes later"
    ),
    "a task that the index lacks is asked for only if a page shows it": 5,
    "a client that is told the same renews the task as of when it is told": (
        "a client is told long after it asked that a task is as it was"
    ),
    "a notification that says the same renews the task": "a notification says late what was so before",
    "a result that makes a task marks nothing": 16,
    "the method of the request that made a task is forgotten": 16,
    "a new session finds no task again": "a client starts again after a task was made",
    "a renewed token finds no task again": "a token is renewed after a task was made",
    "of two answers that overlap the last one is believed": "of two answers that overlap the last one is the older",
    "two answers that overlap and differ mark nothing": "of two answers that overlap the first one is the older",
    "only queries that come later wait for what answers that overlap leave open": (
        "of two answers that overlap the first one is the older"
    ),
    "the response to a request that was not read, or is unknown, says nothing": 19,
    "what only the lenient reader reads says nothing": "a task is in a response with NaN",
    "a response that is no JSON puts nothing in doubt": "a task is made, says a response that is no JSON",
    "a refusal drops the index": "a tool is refused after a task was made",
    "a refusal hides nothing": "a tool is refused after a task was made",
    "an answer to what was asked before a refusal ends it": "an answer to what was asked before a 403 comes after it",
    "one denial takes a task away": "a task is denied once",
    "one denial takes away what a query names": "a task that a query names is denied once",
    "one denial takes away what another session has shown": "a task that a caller finds again is denied once",
    "a 404 to a client ends its session": "there is no route for a stream",
    "an error that refuses a cursor fails the list": "a cursor is refused once with -32000",
    "a status that refuses a cursor fails the list": "a cursor is refused once with 400",
    "an empty cursor is always the end": "the second of three pages has an empty cursor",
    "an empty cursor is never the end": "the end is an empty cursor, which is refused",
    "two tasks prove an order": "two tasks stand in order by chance",
    "empty and shorter pages prove an order": (
        "nine tasks stand in order by chance, on pages that are empty or shorter and name a next one"
    ),
    "a balancer's cookie tells who asks": "a balancer's cookie is new in each answer",
    "a request beside others that is refused with 409 fails the list": "a server serves one request at a time",
    "the gateway's requests have texts for ids": 0,
    "a mark from before a crawl is forgotten where there seemed to be no tasks/get": (
        "over stdio, where nothing finds a task again, there is no such method twice"
    ),
    "a line of a log puts all in doubt": "a line of a log comes between two lists",
    "late news of a task that has ended begins it again": 2,
    "a result under an id that is given again begins no life": "a task that has gone and one of its id are counted",
    "each session that sees a task counts it": "a token is renewed after a task was made",
    "an answer to a client ends a refusal": "a client is served after a 403",
}
"""What finds a fault, and is played first: a history of test_found.py, or of a seed; unless one of its first histories
finds it. All others are played if it does not any more."""
