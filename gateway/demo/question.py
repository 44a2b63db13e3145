"""A question to the gateway, and the judge of its answer.

In: criteria as a requestor sends them, the tasks of the legacy server, the tasks that the gateway answered.
Out: the tasks that are right by the definition (DESIGN 5.2), and what differs, one line each.

Always: nothing here is the gateway's code. The definition is applied a second time, as plainly as it can be
said, so that a mistake of the gateway's cannot hide in the judge.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from .store import Task


@dataclass(frozen=True)
class Question:
    """What is asked, in words and as the parameters of `tasks/list`."""

    title: str
    params: dict[str, Any]

    @property
    def order_by(self) -> str:
        """The member by which the answer is ordered."""
        return str(self.params.get("orderBy", "lastUpdatedAt"))

    def matches(self, task: Task) -> bool:
        """Whether all criteria hold; both bounds of a range are inside it."""
        created, updated = _instant(task["createdAt"]), _instant(task["lastUpdatedAt"])
        given = self.params
        return (
            ("status" not in given or task["status"] in given["status"])
            and ("createdAfter" not in given or created >= _instant(given["createdAfter"]))
            and ("createdBefore" not in given or created <= _instant(given["createdBefore"]))
            and ("lastUpdatedAfter" not in given or updated >= _instant(given["lastUpdatedAfter"]))
            and ("lastUpdatedBefore" not in given or updated <= _instant(given["lastUpdatedBefore"]))
        )

    def differences(self, answered: list[Task], total: object, all_tasks: list[Task]) -> Iterator[str]:
        """What is wrong with an answer; nothing if it is exactly right. `total` is its `taskgate/total`."""
        right = {task["taskId"]: task for task in all_tasks if self.matches(task)}
        times = Counter(task["taskId"] for task in answered)
        yield from (f"missing: {task}" for task_id, task in right.items() if task_id not in times)
        yield from (f"given {count} times: {task_id}" for task_id, count in times.items() if count > 1)
        for task in answered:
            if task["taskId"] not in right:
                yield f"does not match: {task}"
            elif task != right[task["taskId"]]:
                yield f"not what the server says: {task}, but {right[task['taskId']]}"
        if not self._in_order(answered):
            yield f"not ordered by {self.order_by}, {self.params.get('order', 'desc')}"
        if total != len(right):
            yield f"taskgate/total is {total!r}, but {len(right)} match"

    def _in_order(self, tasks: Iterable[Task]) -> bool:
        instants = [_instant(str(dict(task)[self.order_by])) for task in tasks]
        return instants == sorted(instants, reverse=self.params.get("order", "desc") == "desc")


def not_finished(now: datetime) -> Question:
    """What was submitted in the three days up to the end of yesterday and has not come to an end."""
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    first = today - timedelta(days=3)
    return Question(
        f"Tasks submitted yesterday and before (since {first:%Y-%m-%d}, UTC) that are not finished",
        {
            "status": ["working", "input_required"],
            "createdAfter": _rfc3339(first),
            "createdBefore": _rfc3339(today - timedelta(milliseconds=1)),
            "orderBy": "lastUpdatedAt",
            "order": "desc",
        },
    )


def failed_since(now: datetime) -> Question:
    """What failed in the last 24 hours, the oldest task first."""
    return Question(
        "Tasks that failed within the last 24 hours, the oldest first",
        {
            "status": ["failed"],
            "lastUpdatedAfter": _rfc3339(now - timedelta(days=1)),
            "orderBy": "createdAt",
            "order": "asc",
        },
    )


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _rfc3339(instant: datetime) -> str:
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
