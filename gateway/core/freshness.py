"""What must be asked of the upstream before a query may be answered.

In: as of when the index is right, when the refresh that is under way began, how old either may be.
Out: one of four needs. Always: pure; times are seconds of one monotonic clock, given by the caller.

The promise (DESIGN 6): an answer reflects every task's state at some instant not older than `max_age_s` before the
query came. What passes through the gateway is taken into the index as it passes, and is therefore never too old.
"""

from enum import Enum


class Need(Enum):
    """What a query needs of the upstream."""

    NOTHING = "nothing"  # the index is fresh enough
    JOIN = "join"  # the refresh that is under way began late enough
    WAIT = "wait"  # one is under way that began too early; look again when it ends
    REFRESH = "refresh"


def need(oldest: float, as_of: float | None, refresh_began_at: float | None) -> Need:
    """What a query needs that may be answered with states of `oldest` or later.

    `as_of` is None where nothing is indexed yet, `refresh_began_at` where no refresh is under way.
    """
    if as_of is not None and as_of >= oldest:
        return Need.NOTHING
    if refresh_began_at is None:
        return Need.REFRESH
    return Need.JOIN if refresh_began_at >= oldest else Need.WAIT
