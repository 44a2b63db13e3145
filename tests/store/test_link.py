"""The connection to a store whose name has several addresses, of which the first is silent (redis_connection.py)."""

from pathlib import Path

from gateway.store.redis_connection import connect, exchange
from tests.redis_process import redis
from tests.relay.test_dial import NAME, Hosts, on_each_loop, resolve_to


@on_each_loop
async def test_a_black_holed_address_of_the_store_does_not_keep_it_down(at: Hosts, tmp_path: Path) -> None:
    """Each second the time for a connection was over at the first address: no replica ever had its store."""
    async with redis(tmp_path) as store:
        at.port = store.port
        at.black_hole("127.0.0.2")
        resolve_to("127.0.0.2", "127.0.0.1")
        async with connect(f"redis://{NAME}:{store.port}") as link:
            assert await exchange(link, [("ECHO", "here")]) == [b"here"]
