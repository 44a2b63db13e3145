"""What replicas know of each other's sessions through the store (DESIGN 12)."""

from tests.relay.messages import call
from tests.store.conftest import Fleet, Store, known


async def test_tasks_that_the_list_omits_are_known_at_another_replica(fleet: Fleet, store: Store) -> None:
    async with fleet.pair() as (one, other):
        caller = await one.open()
        made = sorted([await one.make(caller) for _ in range(3)])
        await known(store, 3)
        assert await other.ids(caller) == made
