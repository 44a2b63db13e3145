"""What metrics of tasks may say, by the tasks that there were: each begins once and ends once (DESIGN 8.15).

What clients were shown is the least that is counted, what there was the most. Between lies what only the gateway asked
for, or what passed while it did.
"""

from collections.abc import Iterable

from gateway.mcp.task import TERMINAL
from gateway.tasks.lifecycles import ENDS, STARTED, Lives
from tests.model.truth import Truth, Violation


def judge(lives: Lives, truths: Iterable[Truth], old: set[Truth], now: float) -> None:
    """Raises Violation. `old`: the tasks that had ended before the gateway began. Nothing is under way."""
    new = [truth for truth in truths if truth not in old]
    counted = {status: sum(n for s, n in lives.counts.items() if s[2] == status) for status in (STARTED, *ENDS)}
    ended, live = sum(counted[status] for status in ENDS), sum(map(len, lives.live.values()))
    reached = [truth.state.status for truth in new]
    gone = [t for t in new if t.gone is not None or (t.expires is not None and t.expires <= now)]
    begun = {truth.id for truth in new if truth.shown and truth.shown[0] not in TERMINAL}
    over = {truth.id for truth in new if _has_ended(truth.shown)}
    told = f"{counted}, {live} live; begun {len(begun)} to {len(new)}, over {len(over)}, gone {len(gone)}: {reached}"

    def held(rule: bool, what: str) -> None:
        if not rule:
            raise Violation("counts", f"{what}: {told}")

    held(counted[STARTED] == ended + live, "started is not live and ended")
    held(len(begun) <= counted[STARTED] <= len(new), "begun twice, or not at all")
    held(len(over) <= ended, "an end that was seen is not counted")
    held(counted["failed"] <= reached.count("failed"), "failed twice")
    held(counted["cancelled"] <= reached.count("cancelled"), "cancelled twice")
    held(sum(counted[status] for status in TERMINAL) <= sum(map(reached.count, TERMINAL)), "ended twice")
    held(counted["lost"] <= len(gone), "lost, and there")
    held(not counted["other"], "of a status that no task had")


def _has_ended(shown: list[str]) -> bool:
    """Whether a task was shown live, and then as it ended."""
    return bool(shown) and shown[0] not in TERMINAL and not TERMINAL.isdisjoint(shown)
