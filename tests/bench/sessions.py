"""Sessions of the legacy server (legacy.py), with tasks in them."""

from typing import Any, Final

from tests.bench.httpclient import Client
from tests.bench.processes import BenchFailed, Child

# Of an index that never grows too old, so that no crawl is for its age.
WARM: Final[dict[str, Any]] = {"max_age": "1h", "full_crawl_interval": "1h"}


async def filled(url: str, legacy: Child, tasks: int, live: int | None = None) -> Client:
    """A client whose session holds `tasks` that the gateway does not know yet."""
    client = await Client.connect(url)
    await client.initialize()
    await legacy.ask("load", tasks=tasks, live=live)
    return client


async def indexed(client: Client, tasks: int) -> None:
    """Make the gateway crawl the session. Raises BenchFailed unless it then knows all `tasks`."""
    answer = await client.ask("tasks/list", {"order": "desc"})
    if answer["_meta"]["taskgate/total"] != tasks:
        raise BenchFailed(f"of {tasks} tasks the gateway knows {answer['_meta']['taskgate/total']}")
