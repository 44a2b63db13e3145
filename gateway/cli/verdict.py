"""What lists of tasks say of their server, what they cost, and the verdict. What cannot be known from them is None."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from gateway.cli.mcp_client import object_of
from gateway.cli.table import Json
from gateway.mcp.task import STATUSES, parse_instant
from gateway.query.criteria import capability

UNFINISHED: Final = ("working", "input_required")
_FILTERS: Final = {"declared": "by itself, and says so", "unsaid": "by status, but does not say so"}
CUTS: Final = (50, 100)  # lists of so many tasks, without a cursor, may have been cut
_ORDERS: Final = {
    "createdAt": ("oldest first", "newest first"),
    "lastUpdatedAt": ("latest change last", "latest change first"),
}
_INSTANTS: Final = tuple(_ORDERS)
_UNLISTED: Final = "not in the server's own list"
OPENED: Final = "opened, deleted in the end"
SESSION_ID: Final = " For your client's tasks: --session ID, the Mcp-Session-Id of its requests."


class ByHand(NamedTuple):
    """A list read by hand: its tasks, how many were on each page, the bytes of the results, whether it is whole."""

    tasks: list[Json]
    pages: list[int]
    received_bytes: int
    whole: bool

    @property
    def by_id(self) -> dict[str, Json]:
        return {str(task.get("taskId")): task for task in self.tasks}

    @property
    def statuses(self) -> dict[str, int]:
        found = Counter(str(task.get("status")) for task in self.tasks)
        return {status: found[status] for status in STATUSES if found[status]}

    def fact(self) -> Json:
        size = max(self.pages) if len(self.pages) > 1 else None
        cost = {"requests": len(self.pages), "bytes": self.received_bytes, "tasks": len(self.tasks)}
        return {**cost, "page_size": size, "whole": self.whole}


def order(first: ByHand, second: ByHand) -> str | None:
    """The order of the tasks in words; None if there are too few to tell."""
    ids, again = list(first.by_id), list(second.by_id)
    both = set(ids) & set(again)
    if [i for i in ids if i in both] != [i for i in again if i in both]:
        return "another at each reading"
    for name, (rises, falls) in _ORDERS.items():
        instants = [parse_instant(str(task.get(name))) for task in second.tasks]
        rising = sorted(instant for instant in instants if instant is not None)
        if len(set(rising)) > 1 and instants in (rising, rising[::-1]):
            return rises if instants == rising else falls
    if len(again) < 2:
        return None
    return "by id" if again == sorted(again) else "none to be seen"


def instants_move(first: ByHand, second: ByHand) -> bool | None:
    """Whether the timestamps of a task that does not change are others at another reading."""
    before, pairs = first.by_id, []
    for task_id, task in second.by_id.items():
        if task_id in before:
            done = task.get("status") not in UNFINISHED and task.get("status") == before[task_id].get("status")
            pairs.append((task, before[task_id], _INSTANTS if done else _INSTANTS[:1]))
    return any(one.get(name) != other.get(name) for one, other, names in pairs for name in names) if pairs else None


def has_changed(first: ByHand, second: ByHand) -> bool:
    """Whether a task was made, has gone or has changed between two readings. Timestamps that move do not count."""
    names = ("status", "statusMessage") if instants_move(first, second) else ("status", "statusMessage", *_INSTANTS)
    one, other = ({i: [task.get(n) for n in names] for i, task in each.by_id.items()} for each in (first, second))
    return one != other


def samples(listing: ByHand) -> list[Json]:
    """Up to three tasks to be asked for by `tasks/get`: those that are finished, which no longer change, go first."""
    done = [task for task in listing.tasks if task.get("status") not in UNFINISHED] or listing.tasks
    return [done[at] for at in sorted({0, len(done) // 2, len(done) - 1})] if done else []


def agree(listed: Json, got: Json, moving: bool) -> bool:
    apart = {"_meta", *(_INSTANTS if moving else ())}
    one, other = ({k: v for k, v in task.items() if v is not None and k not in apart} for task in (listed, got))
    return one == other


def seen_by_others(mine: ByHand, theirs: list[Json]) -> str | None:
    """What another session sees of the tasks; None if there are none."""
    if not mine.tasks:
        return None
    seen = sum(str(task.get("taskId")) in mine.by_id for task in theirs)
    return "none" if not seen else "all" if seen == len(theirs) and theirs else "some"


def verdict(learned: Json) -> tuple[bool | None, str]:
    """Whether taskgate helps at this server, None if that is not known, and why, in one line."""
    if not learned.get("lists", True):
        return False, "taskgate brings you nothing here: this server declares no tasks/list."
    if learned.get("filters") == "declared":
        said = "taskgate brings you nothing here: this server filters its tasks by itself, and says so."
        is_ours = object_of(learned["tasks"]["list"]["filter"]) | {"methods": []} == json.loads(capability(()))
        return False, said + " Is this address taskgate already?" * is_ours
    hand = learned.get("by_hand_later") or learned.get("by_hand")
    made, later = learned.get("created"), learned.get("later")
    if hand is None:
        return None, "Too little is known to say."
    pages, one = hand["requests"], "this server lists all in one page"
    few = "You get order, criteria and fewer bytes."
    few = f"With more than {_count(hand['tasks'], 'task')}, try again." if hand["tasks"] < CUTS[0] else few
    if not hand["whole"]:
        return True, f"taskgate helps here: this server's list has more than {pages:,} pages. Try --pages {10 * pages}."
    if made and made["got"] and not made["listed"]:
        words = "this server's own list leaves out tasks that it has; taskgate's has them."
        return True, f"taskgate makes the list: {words}"
    if not hand["tasks"]:
        named = SESSION_ID * (learned.get("session") == OPENED)
        makes = "--create TOOL makes a task, and shows what a change costs."
        return False, f"The list is empty, which says little.{named} {makes}"
    if learned.get("may_be_cut"):
        return True, f"taskgate may help here: {one}, and may cut it at {hand['tasks']} tasks."
    if pages == 1:
        return False, f"taskgate brings you little here: {one}. {few}"
    if learned["filters"] == "unsaid":
        return False, "taskgate brings you little here: this server filters by status. You get the other criteria."
    if later is None:
        return True, f"taskgate may save you requests here: a list by hand takes {pages:,}. More is not known."
    if later["asked"] < pages:
        return True, f"taskgate saves requests here: {later['asked']:,} in place of {pages:,}; you send one."
    return True, f"taskgate helps you here: one request in place of {pages:,}. The server gets as many as before."


def _said(value: Any, yes: str, no: str) -> str:
    return "" if value is None else yes if value else no


def _tasks(capability: Any) -> str:
    if not isinstance(capability, dict):
        return "none declared"
    requests = object_of(capability.get("requests"))
    made = ", ".join(f"{kind}/{name}" for kind, names in requests.items() for name in object_of(names))
    can = ", ".join(name for name in capability if name != "requests") or "declared"
    return f"{can}; made by {made}" if made else can


def _by_hand(fact: Json) -> str:
    size = f", {fact['page_size']} a page" if fact["page_size"] else ""
    more = "" if fact["whole"] else "; there are more"
    words = f"{_count(fact['requests'], 'request')}, {fact['bytes']:,} bytes, {_count(fact['tasks'], 'task')}"
    return f"{words}{size}{more}"


def _filtered(fact: Json) -> str:
    asked = _count(fact["asked"], "request")
    return f"1 request, {fact['bytes']:,} bytes, {_count(fact['tasks'], 'task')}; the server gets {asked}"


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


WORDS: Final[dict[str, tuple[str, Callable[[Any], str]]]] = {
    "redirect": ("address", str),
    "revision": ("revision", str),
    "server": ("server", lambda fact: " ".join(filter(None, [fact["name"], fact["version"]])) or "it has no name"),
    "tasks": ("tasks", _tasks),
    "session": ("session", str),
    "by_hand": ("by hand", _by_hand),
    "statuses": ("statuses", lambda fact: ", ".join(f"{n:,} {status}" for status, n in fact.items()) or "none"),
    "order": ("order", lambda fact: fact or ""),
    "may_be_cut": ("cut", lambda fact: _said(fact, "perhaps: a round number, and no cursor", "no sign of it")),
    "filters": ("filters", lambda fact: _FILTERS.get(fact, "no")),
    "criteria": ("criteria", lambda fact: "&".join(f"{name}={','.join(values)}" for name, values in fact.items())),
    "first": ("filtered", _filtered),
    "again": ("again", _filtered),
    "created": ("created", lambda fact: fact["id"] + ", " + _said(fact["listed"], "listed", _UNLISTED)),
    "later": ("later", _filtered),
    "change": ("change", lambda fact: _said(fact, 'seen: "later" is after it', "not seen")),
    "by_hand_later": ("by hand", _by_hand),
    "instants_move": ("timestamps", lambda fact: _said(fact, "move between two readings", "stay between two readings")),
    "get_agrees": ("tasks/get", lambda fact: _said(fact, "agrees with the list", "does not agree with the list")),
    "others_see": ("others", lambda fact: f"another session sees {fact} of these tasks" if fact else ""),
    "gateway_agrees": ("checked", lambda fact: _said(fact, "taskgate's list is that by hand", "taskgate's differs")),
}
"""For each fact the head of its line, and its words: "" if it is not known. What is not here has none."""
