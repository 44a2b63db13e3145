"""A page may read what the upstream allowed that page, whatever others are allowed or refused meanwhile."""

import pytest

from gateway.http.cors import Cors
from gateway.http.header_fields import Headers

PAGE, PATH = b"http://localhost:6274", b"/mcp"
CLIENT, OTHER = b"10.0.0.1", b"10.0.0.2"
KNOWN, STRANGER = b"known", b"stranger"


def told(origin: bytes) -> Headers:
    return Headers([(b"Access-Control-Allow-Origin", origin), (b"Content-Type", b"text/plain")])


def told_to_a_page() -> Cors:
    cors = Cors()
    cors.note(CLIENT, PAGE, PATH, KNOWN, 200, told(PAGE))
    return cors


def test_a_page_may_read_what_an_answer_told_it() -> None:
    assert [*told_to_a_page().fields(PAGE, PATH + b"?a=1", KNOWN)] == [*told(PAGE)][:1]
    assert not told_to_a_page().fields(b"http://localhost:1", PATH, KNOWN)
    assert not told_to_a_page().fields(PAGE, b"/other", KNOWN)
    assert not told_to_a_page().fields(PAGE, PATH, STRANGER)


def test_a_refusal_is_noted_for_nobody_but_who_was_told() -> None:
    for status in (400, 401, 403, 404, 500):
        cors = told_to_a_page()
        for number in range(2000):
            cors.note(CLIENT, b"http://localhost:%d" % number, PATH, STRANGER, status, told(b"*"))
        cors.note(CLIENT, PAGE, PATH, STRANGER, status, Headers())
        cors.note(CLIENT, PAGE, PATH, None, status, Headers())
        assert cors.fields(PAGE, PATH, KNOWN)
        assert not cors.fields(b"http://localhost:1999", PATH, STRANGER)
        cors.note(CLIENT, PAGE, PATH, KNOWN, status, Headers())
        assert bool(cors.fields(PAGE, PATH, KNOWN)) is (status not in (401, 403))


def test_preflights_push_out_no_answer() -> None:
    """Anybody's preflight is answered, from any origin."""
    cors = told_to_a_page()
    for number in range(2000):
        cors.note(CLIENT, b"http://localhost:%d" % number, PATH, None, 204, told(b"*"))
    assert cors.fields(b"http://localhost:1999", PATH, STRANGER)
    assert not cors.fields(b"http://localhost:0", PATH, STRANGER)
    cors.note(CLIENT, PAGE, PATH, None, 204, Headers())  # of a preflight that asks for nothing
    assert cors.fields(PAGE, PATH, KNOWN)


@pytest.mark.parametrize("known", [KNOWN, None], ids=["an answer", "a preflight"])
def test_what_one_client_invents_displaces_its_own_notes(known: bytes | None) -> None:
    """1,001 invented origins once pushed out the note of every page."""
    cors, who = Cors(), None if known is None else STRANGER
    cors.note(CLIENT, PAGE, PATH, known, 204, told(PAGE))
    for number in range(3000):
        cors.note(b"10.0.0.%d" % (2 + number % 3), b"http://localhost:%d" % number, PATH, who, 204, told(b"*"))
        cors.note(OTHER, PAGE, PATH + b"%d" % number, who, 204, told(b"*"))
        cors.note(OTHER, PAGE, PATH, who, 204, told(PAGE))  # the page's own: that makes it no note of this client's
    assert cors.fields(PAGE, PATH, KNOWN)
    assert not cors.fields(b"http://localhost:0", PATH, STRANGER)
    assert cors.fields(b"http://localhost:2999", PATH, STRANGER)


def test_each_of_many_clients_keeps_its_last_page() -> None:
    """A thousand pages are noted, and no more; the client that was noted longest ago goes first."""
    cors = Cors()
    for number in range(2000):
        cors.note(b"%d" % number, PAGE, PATH, b"%d" % number, 200, told(PAGE))
        cors.note(b"999", PAGE, PATH, b"999", 200, told(PAGE))
    noted = [number for number in range(2000) if cors.fields(PAGE, PATH, b"%d" % number)]
    assert noted == [999, *range(1001, 2000)]


def test_a_caller_who_comes_by_several_addresses_is_told_the_same() -> None:
    """As by the nodes of a proxy."""
    cors = told_to_a_page()
    cors.note(OTHER, PAGE, PATH, KNOWN, 200, told(b"*"))
    assert [*cors.fields(PAGE, PATH, KNOWN)] == [*told(b"*")][:1]
    cors.note(OTHER, PAGE, PATH, KNOWN, 200, Headers())
    assert not cors.fields(PAGE, PATH, KNOWN)


def test_fields_that_are_large_are_not_noted() -> None:
    """A thousand pages may be noted, and no other limit counts them."""
    large = Headers([*told(PAGE), (b"Access-Control-Expose-Headers", b"x" * 60_000)])
    cors = told_to_a_page()
    cors.note(CLIENT, PAGE, PATH, None, 204, large)
    assert cors.fields(PAGE, PATH, KNOWN)
    cors.note(CLIENT, PAGE, PATH, KNOWN, 200, large)
    assert not cors.fields(PAGE, PATH, KNOWN)
