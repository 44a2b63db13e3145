"""A page may read what the upstream allowed that page, whatever others are allowed or refused meanwhile."""

from gateway.transport.cors import Cors
from gateway.transport.headers import Headers

PAGE, PATH = b"http://localhost:6274", b"/mcp"
KNOWN, STRANGER = b"known", b"stranger"


def told(origin: bytes) -> Headers:
    return Headers([(b"Access-Control-Allow-Origin", origin), (b"Content-Type", b"text/plain")])


def told_to_a_page() -> Cors:
    cors = Cors()
    cors.note(PAGE, PATH, KNOWN, 200, told(PAGE))
    return cors


def test_a_page_may_read_what_an_answer_told_it() -> None:
    assert [*told_to_a_page().fields(PAGE, PATH + b"?a=1")] == [*told(PAGE)][:1]
    assert not told_to_a_page().fields(b"http://localhost:1", PATH)
    assert not told_to_a_page().fields(PAGE, b"/other")


def test_a_refusal_is_noted_for_nobody_but_who_was_told() -> None:
    for status in (400, 401, 403, 404, 500):
        cors = told_to_a_page()
        for number in range(2000):
            cors.note(b"http://localhost:%d" % number, PATH, STRANGER, status, told(b"*"))
        cors.note(PAGE, PATH, STRANGER, status, Headers())
        cors.note(PAGE, PATH, None, status, Headers())
        assert cors.fields(PAGE, PATH)
        assert not cors.fields(b"http://localhost:1999", PATH)
        cors.note(PAGE, PATH, KNOWN, status, Headers())
        assert bool(cors.fields(PAGE, PATH)) is (status not in (401, 403))


def test_preflights_push_out_no_answer() -> None:
    """Anybody's preflight is answered, from any origin."""
    cors = told_to_a_page()
    for number in range(2000):
        cors.note(b"http://localhost:%d" % number, PATH, None, 204, told(b"*"))
    assert cors.fields(b"http://localhost:1999", PATH)
    assert not cors.fields(b"http://localhost:0", PATH)
    cors.note(PAGE, PATH, None, 204, Headers())  # of a preflight that asks for nothing
    assert cors.fields(PAGE, PATH)


def test_an_answer_without_cors_admits_a_page_no_more() -> None:
    cors = told_to_a_page()
    cors.note(PAGE, PATH, None, 204, told(PAGE))
    cors.note(PAGE, PATH, KNOWN, 200, Headers())
    assert not cors.fields(PAGE, PATH)


def test_fields_that_are_large_are_not_noted() -> None:
    """A thousand pages may be noted, and no other limit counts them."""
    large = Headers([*told(PAGE), (b"Access-Control-Expose-Headers", b"x" * 60_000)])
    cors = told_to_a_page()
    cors.note(PAGE, PATH, None, 204, large)
    assert cors.fields(PAGE, PATH)
    cors.note(PAGE, PATH, KNOWN, 200, large)
    assert not cors.fields(PAGE, PATH)
