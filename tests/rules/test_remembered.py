"""Which heads are remembered, how many, and for how long (parsed_head_cache.py).

That it changes nothing: test_generated_heads.py.
"""

from types import SimpleNamespace
from typing import Any

from gateway.caller_identity import VARYING
from gateway.http import parsed_head_cache as remembered
from gateway.http.parsed_head_cache import ConnectionHeads, Cut, HeadCache
from gateway.http.request_parser import read_head

HEAD_BYTES_MAX = 8000
PLAIN = b"POST /mcp HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer t\r\nContent-Length: %b\r\n\r\n"


def cache() -> HeadCache[Any]:
    return HeadCache(VARYING.__contains__)


def keep_once(recall: ConnectionHeads[Any], heads: HeadCache[Any], data: bytes, kept: object = "kept") -> bool:
    head = read_head(data, heads.varies.cut(data))
    return head.cut is not None and recall.keep(heads, head.cut, head.headers, head.body_bytes, kept)


def keep(recall: ConnectionHeads[Any], heads: HeadCache[Any], data: bytes, kept: object = "kept") -> None:
    """The head comes twice: then it is kept."""
    for _ in range(2):
        keep_once(recall, heads, data, kept)


def finds(recall: ConnectionHeads[Any], data: bytes) -> bool:
    return not isinstance(recall.find(data, HEAD_BYTES_MAX), Cut | None)


def test_a_connection_that_ends_its_configuration_remembers_no_head_by_what_varied_in_it() -> None:
    """The new one may tell callers apart by an id that varied in the old."""
    old, new = cache(), HeadCache[Any](lambda _: False)
    head = read_head(PLAIN % b"5", old.varies.cut(PLAIN % b"5"))
    assert head.cut is not None
    source: Any = SimpleNamespace(heads=new)
    for _ in range(3):
        assert not ConnectionHeads[Any](source).keep(new, head.cut, head.headers, 5, "kept")
    assert len(new.entries) == 0


def test_a_connection_adds_few_heads_and_an_entry_ends_without_use() -> None:
    source: Any = SimpleNamespace(heads=cache())
    flood, other = ConnectionHeads[Any](source, "a"), ConnectionHeads[Any](source, "a")
    keep(other, source.heads, PLAIN % b"5")
    for number in range(3 * remembered.OF_ONE_CONNECTION_MAX):
        keep(flood, source.heads, (PLAIN % b"5").replace(b"Bearer t", b"Bearer %d" % number), "flood")
    assert len(source.heads.entries) == remembered.OF_ONE_CONNECTION_MAX + 1
    found = other.find(PLAIN % b"7", HEAD_BYTES_MAX)
    assert found is not None
    assert found == ("kept", (b"7",), len(PLAIN % b"7"), 7)
    assert not finds(ConnectionHeads[Any](source, "b"), PLAIN % b"7"), "another way found it"
    for now in range(int(2 * remembered.IDLE_S)):
        source.heads.sweep(now)
        if now % 10 == 0:
            assert finds(other, PLAIN % b"5")
    assert len(source.heads.entries) == 1, "the flood is unused"
    assert not flood.added
    for now in range(int(2 * remembered.IDLE_S), int(3 * remembered.IDLE_S) + 2):
        source.heads.sweep(now)
    assert len(source.heads.entries) == source.heads.size_bytes == 0
    assert not finds(other, PLAIN % b"5"), "the connection kept it"


def test_a_configuration_that_ends_takes_all_its_heads_along() -> None:
    source: Any = SimpleNamespace(heads=cache())
    recall = ConnectionHeads[Any](source)
    keep(recall, source.heads, PLAIN % b"5")
    assert finds(recall, PLAIN % b"5")
    old, source.heads = source.heads, cache()
    old.end()
    assert not finds(recall, PLAIN % b"5")
    keep(recall, old, PLAIN % b"5")
    assert len(old.entries) == 0


def test_the_table_is_bounded() -> None:
    source: Any = SimpleNamespace(heads=cache())
    padding = b"x" * 3000
    for number in range(5000):
        head = (PLAIN % b"5").replace(b"Bearer t", b"Bearer %d%b" % (number, padding if number % 2 else b""))
        keep(ConnectionHeads[Any](source), source.heads, head)
        assert len(source.heads.entries) <= remembered.ENTRIES_MAX
        assert source.heads.size_bytes <= remembered.BYTES_MAX
    assert len(source.heads.entries) > 500
    large = (PLAIN % b"5").replace(b"Bearer t", b"Bearer " + b"x" * remembered.HEAD_BYTES_MAX)
    keep(ConnectionHeads[Any](source), source.heads, large)
    assert ConnectionHeads[Any](source).find(large, HEAD_BYTES_MAX) is None


def test_a_head_that_comes_once_takes_no_memory() -> None:
    source: Any = SimpleNamespace(heads=cache())
    for number in range(3000):
        keep_once(
            ConnectionHeads[Any](source), source.heads, (PLAIN % b"5").replace(b"Host", b"X-Id: %d\r\nHost" % number)
        )
    assert len(source.heads.entries) < 300, "few share a slot"
    for now in (0, 30, 60, 90, 120):
        source.heads.sweep(now)
    recall = ConnectionHeads[Any](source)
    keep_once(recall, source.heads, PLAIN % b"5")
    assert not finds(recall, PLAIN % b"5"), "it came once"
    keep_once(recall, source.heads, PLAIN % b"6")
    assert finds(recall, PLAIN % b"5")
