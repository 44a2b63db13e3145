"""What a filtered list costs at each server: the table of docs/clients.md, but for its figures of a minute."""

from dataclasses import dataclass
from typing import Final

from tests.launch import Gateways
from tests.relay.messages import call, dumps
from tests.relay.rig import Session, body, final, own
from tests.world.servers import KINDS, Server, pages_by_hand, shown

TASKS: Final = 1_000
LIVE: Final = 10
_EACH: Final = 50  # requests on a connection
MADE_HERE: Final = ("FastMCP 3.4", "Rust SDK (rmcp) to 2.2", "any that cuts its list at 50 tasks")
"""The tasks of these must be seen when they are made: no list shows them all."""

HEAD: Final = """\
| server | by hand | first | later | the gateway |
|---|---|---|---|---|"""


@dataclass(frozen=True)
class Part:
    """What one way costs: requests, and bytes of their results (KB in the table)."""

    requests: int
    sent_bytes: int

    def __str__(self) -> str:
        return f"{self.requests:,}, {self.sent_bytes / 1000:,.1f}"


@dataclass(frozen=True)
class Cost:
    """The cost of the list of live tasks: all pages read by hand; the same filtered, of a client; what the server has
    to answer for it, at first, and once all that is known is too old.

    `found` are the live tasks that the answers had, by hand and filtered.
    """

    by_hand: Part
    filtered: Part
    first: Part
    later: Part
    found: tuple[int, int]

    def row(self, name: str) -> str:
        by_hand = f"{self.by_hand}" if self.found[0] == LIVE else f"{self.by_hand}: {self.found[0]} of {LIVE} tasks"
        return f"| {name} | {by_hand} | {self.first.requests:,} | {self.later} | {self._brings(name)} |"

    def _brings(self, name: str) -> str:
        if name in MADE_HERE:
            return "makes the list"
        if self.later.requests < self.by_hand.requests:
            return "saves requests"
        return "saves bytes" if self.later.requests == self.by_hand.requests else "adds criteria"


async def measured(gateways: Gateways, name: str) -> Cost:
    """The cost at one kind of server. Nothing stays fresh there."""
    server = Server(KINDS[name])
    async with own(gateways, index={"max_age": "0s", "full_crawl_interval": "1h"}) as rig:
        rig.serve(server)
        session = Session(rig)

        def since(before: Part) -> Part:
            return Part(server.asked.total() - before.requests, server.sent_bytes - before.sent_bytes)

        def now() -> Part:
            return Part(server.asked.total(), server.sent_bytes)

        async def listed() -> tuple[int, Part]:
            page = final(await session.ask(call("tasks/list", 1, status="working", order="asc")))["result"]
            return len(page["tasks"]), Part(1, len(dumps(page)))

        if name in MADE_HERE:
            for number in range(TASKS):
                if number % _EACH == 0:  # the harness looks at all that a connection has had
                    one = await rig.client()
                await one.send(session.request(call("tools/call", f"r{number:08}", name="work", task={})))
                made = await one.response(number % _EACH + 1)
                if number % (TASKS // LIVE):
                    server.change(body(made)["result"]["task"]["taskId"], "completed")
        else:
            server.fill(TASKS, LIVE)
        before = now()
        criteria = {"status": "working"} if server.kind.filters else {}
        by_hand = {i for page in pages_by_hand(server, **criteria) for i in shown(page)}
        hand, before = since(before), now()
        await listed()
        first, before = since(before), now()
        found, filtered = await listed()
        live = {task_id for task_id, task in server.tasks.items() if task["status"] == "working"}
        return Cost(hand, filtered, first, since(before), (len(by_hand & live), found))


async def table(gateways: Gateways) -> str:
    return "\n".join([HEAD, *[(await measured(gateways, name)).row(name) for name in KINDS]])
