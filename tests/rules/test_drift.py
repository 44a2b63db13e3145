"""Sessions in which each request is another caller (DESIGN 7.11), as far as they are followed."""

from gateway.upstream import caller_identity_drift as module
from gateway.upstream.caller_identity_drift import IDENTITIES_MIN, IdentityDrift


def drifts(drift: IdentityDrift, session: object, count: int, at: float = 0.0) -> bool:
    found = False
    for n in range(count):
        value = b"%d" % n
        found = drift.note(session, value, [(b"x-odd", value), (b"x-even", b"1")], at)
    return found


def test_it_takes_so_many_identities_in_a_row() -> None:
    assert not drifts(IdentityDrift(), 1, IDENTITIES_MIN - 1)
    drift = IdentityDrift()
    assert drifts(drift, 1, IDENTITIES_MIN) and drift.names == ["x-odd"]
    assert drift.news() and not drift.news()


def test_an_identity_that_comes_again_ends_the_row() -> None:
    drift = IdentityDrift()
    for n in range(10 * IDENTITIES_MIN):
        back = n % (IDENTITIES_MIN - 1) == 0
        assert not drift.note(1, b"one" if back else b"%d" % n, [(b"a", b"%d" % n)], 0.0)


def test_only_so_many_sessions_are_followed_and_none_for_ever() -> None:
    """A stranger's sessions hide a drift for a minute at most, and those that are followed go on."""
    drift = IdentityDrift()
    for session in range(10 * module._SESSIONS_MAX):
        drift.note(session, b"", [], 0.0)
    assert len(drift.sessions) == module._SESSIONS_MAX
    assert not drifts(drift, "new", 2 * IDENTITIES_MIN, module._IDLE_S - 1)
    assert drifts(drift, 0, IDENTITIES_MIN + 1, module._IDLE_S - 1)
    assert drifts(drift, "new", 2 * IDENTITIES_MIN, module._IDLE_S)
    assert len(drift.sessions) == module._SESSIONS_MAX


def test_few_names_are_told_and_none_is_long() -> None:
    drift = IdentityDrift()
    for n in range(2 * IDENTITIES_MIN):
        drift.note(1, b"%d" % n, [(b"%d-" % k + b"x" * 999, b"%d" % n) for k in range(50)], 0.0)
    assert len(drift.names) == module._NAMES_MAX and {len(name) for name in drift.names} == {module._NAME_CHARS_MAX}
    assert drift.news() and not drift.news()
    drift.names = ["another"]
    assert not drift.news(), "the log would have a line for each name that a client invents"
