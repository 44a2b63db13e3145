"""What metrics of tasks may say, by the tasks that there were: each begins once and ends once (DESIGN 8.15).

What clients were shown is the least that is counted, what there was the most. Between lies what only the gateway asked
for, or what passed while it did.
"""

from collections.abc import Iterable

from gateway.tasks.lifecycle_counts import ENDS, STARTED, Lives
from tests.model.truth import AFTER_ALL, TERMINAL, Truth, Violation


def judge(lives: Lives, truths: Iterable[Truth], old: set[Truth], now: float) -> None:
    """Raises Violation. `old`: the tasks that had ended before the gateway began. Nothing is under way."""
    new = [truth for truth in truths if truth not in old]
    counted = {status: sum(n for s, n in lives.counts.items() if s[2] == status) for status in (STARTED, *ENDS)}
    ended, live = sum(counted[status] for status in ENDS), sum(map(len, lives.live.values()))
    reached = [truth.state.status for truth in new]
    reached += [truth.state.status for truth in new if _is_taken_for_another(truth, new)]
    reached += ["completed" for truth in new if truth.may_seem_ended]
    unheard = [t for t in new if t.left is not AFTER_ALL or (t.expires is not None and t.expires <= now)]
    gone = [t for t in new if t.gone is not None or t.was_denied or t in unheard]
    made = [truth.name for truth in new if _is_told_in_time(truth) and not _is_overtaken(truth, new)]
    told_apart = [
        t for t in new if t.answered is not None or not (_is_from_before_an_end(t, new) or _is_shown_at_once(t))
    ]
    seen = {truth.name for truth in told_apart if _is_first_shown_live(truth)}
    begun = len(made) + len(seen.difference(made))  # an id that is given again elsewhere may look like one task
    over = {
        truth.name
        for truth in told_apart
        if _is_first_shown_live(truth) and truth.shows_end_before(truth.left) and not _is_overtaken(truth, new)
    }
    told = f"{counted}, {live} live; begun {begun} to {len(new)}, over {len(over)}, gone {len(gone)}: {reached}"

    def held(rule: bool, what: str) -> None:
        if not rule:
            raise Violation("counts", f"{what}: {told}")

    held(counted[STARTED] == ended + live, "started is not live and ended")
    held(begun <= counted[STARTED] <= len(new), "begun twice, or not at all")
    held(len(over) <= ended, "an end that was seen is not counted")
    held(counted["failed"] <= reached.count("failed"), "failed twice")
    held(counted["cancelled"] <= reached.count("cancelled"), "cancelled twice")
    held(sum(counted[status] for status in TERMINAL) <= sum(map(reached.count, TERMINAL)), "ended twice")
    held(counted["lost"] <= len(gone), "lost, and there")
    held(not counted["other"], "of a status that no task had")


def _is_told_in_time(truth: Truth) -> bool:
    """Whether the result that made it came before the gateway went to another server: nothing begins at one it left."""
    return truth.answered is not None and truth.answered[0] < truth.left


def _is_overtaken(made: Truth, among: list[Truth]) -> bool:
    """Whether its id was given again before the result that made it came: then it is not counted."""
    came = made.answered[0] if made.answered is not None else made.born
    return any(made.name == other.name and made.born < other.born < came for other in among)


def _is_from_before_an_end(truth: Truth, among: list[Truth]) -> bool:
    """Whether it was created before the end of an earlier one of its id, by a notification that lies about the time."""
    return any(
        truth.name == other.name and other.born < truth.born and truth.created <= other.said_until for other in among
    )


def _is_taken_for_another(made: Truth, among: list[Truth]) -> bool:
    """Whether its end may have been counted as that of the life before, which was gone, and then as its own.

    Until the result that made it comes nobody can tell it from the other, at a server that writes the time of each
    answer (DESIGN 2.15). What is counted stays counted. When a result came that the gateway need not read is not known.
    """
    others = [other for other in among if made.name == other.name and other.born < made.born]
    is_late = made.asked_for and (made.answered is None or made.state.since < made.answered[0])
    return is_late and not all(other.shows_end_before(made.state.since) for other in others)


def _is_first_shown_live(truth: Truth) -> bool:
    """Not by late news of a task of which the gateway may know that it has ended: its client had left the stream."""
    return any(at < min(truth.left, truth.over_said) and status not in TERMINAL for at, status in truth.shown[:1])


def _is_shown_at_once(truth: Truth) -> bool:
    """Whether it was shown live and as it ended at one time: in another order, perhaps, than they passed."""
    live, ended = ({at.time for at, s in truth.shown if (s in TERMINAL) is over} for over in (False, True))
    return bool(live and ended) and min(live) == min(ended)
