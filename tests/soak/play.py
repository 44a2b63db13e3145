"""Plays conversations: a client in front of a gateway, the upstream behind it, and what is left after them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Final

from tests.peer import Client, NotInTime
from tests.relay.wire import request, response
from tests.soak import judge
from tests.soak.plan import SESSIONS, Conversation, Exchange, identity, marked
from tests.soak.upstream import Upstream

SETTLE_S: Final = 5.0
POLL_S: Final = 0.001
READS_S: Final = 0.001  # a slow client
PAUSES_S: Final = 0.01
_LIST_BYTES: Final = 1500  # about, of what the gateway answers


async def converse(port: int, conversation: Conversation, upstream: Upstream) -> list[str]:
    """One connection of a client's; the faults in what came (judge.py)."""
    client = await Client.connect(port)
    departure = conversation.departure
    asking = asyncio.create_task(_ask(client, conversation, upstream))
    dawdling = asyncio.create_task(_dawdle(client)) if conversation.is_slow else None
    try:
        left = await _until_departure(client, conversation, asking)
        if left and departure is not None and departure.half:
            client.finish()
            await client.ends()
        methods, received, end = client.outgoing.methods(), bytes(client.received), client.end
    finally:
        for task in filter(None, (asking, dawdling)):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if departure is not None and departure.how == "rst":
            client.reset()
        elif departure is not None:
            client.finish()
        await client.close()
    return judge.faults(conversation.exchanges, received, end, left, methods, upstream.promised)


async def forget_sessions(port: int, upstream: Upstream) -> None:
    """Have the clients end their sessions, as hosts do: nothing needs to be known of them any more."""
    for number, session in enumerate(SESSIONS):
        asked = request(b"DELETE", fields=[*identity(session), b"X-Request-Id: %d" % number])
        ending = Exchange(number, "DELETE", session, asked, marked(response(b""), number))
        upstream.expect([ending])
        assert not await converse(port, Conversation([ending], False, [], None), upstream)
        upstream.forget([ending])


async def settled(upstream: Upstream, left: Callable[[], Awaitable[str]]) -> list[str]:
    """What is left behind when everything has had time to end."""
    deadline = time.monotonic() + SETTLE_S
    quiet = 0
    while quiet < 2:  # looks in a row: what is cancelled may still have a last word
        busy = sum(not line.is_idle for line in upstream.lines)
        remains = f"{busy} requests at the upstream that nobody waits for" if busy else await left()
        quiet = 0 if remains else quiet + 1
        if remains and time.monotonic() > deadline:
            return [f"left behind: {remains}"]
        await asyncio.sleep(POLL_S)
    return []


async def _until_departure(client: Client, conversation: Conversation, asking: "asyncio.Task[None]") -> bool:
    """Return when the client has got all it wanted, or when it leaves: whether it did."""
    departure = conversation.departure
    if departure is None or departure.at == "asking":
        await asking
        return departure is not None
    enough = departure.share * sum(len(e.answered) or _LIST_BYTES for e in conversation.exchanges)
    leaving = asyncio.create_task(
        client.until(lambda: len(client.received) >= enough or client.end != "open", f"{enough:.0f} bytes")
    )
    try:
        await asyncio.wait({asking, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            asking.result()
        return not asking.done() or (client.end == "open" and conversation.exchanges[-1].stays_open)
    finally:
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)


async def _ask(client: Client, conversation: Conversation, upstream: Upstream) -> None:
    """Send the requests, and wait for the responses: for each in turn, or for all behind the last."""
    exchanges, departure = conversation.exchanges, conversation.departure
    allowed = conversation.sent_bytes
    groups = [exchanges] if conversation.pipelined else [[e] for e in exchanges]
    wanted = 0
    for group in groups:
        data = b"".join(e.asked for e in group)[:allowed]
        if group[-1] is exchanges[-1]:
            data += conversation.behind
        allowed -= len(data)
        await client.send(*_split(data, conversation.cuts))
        wanted += len(group)
        if not allowed and departure is not None and departure.at == "asking":
            return
        await _responses(client, wanted, group[-1], upstream)
        if client.end != "open":
            return


async def _dawdle(client: Client) -> None:
    """Read only now and then."""
    while True:
        await asyncio.sleep(READS_S)
        client.pause()
        await asyncio.sleep(PAUSES_S)
        client.resume()


async def _responses(client: Client, wanted: int, last: Exchange, upstream: Upstream) -> None:
    """Return once so many responses have come, with all that they have; or the connection has ended.

    While the gateway asks the upstream anything, whatever takes long is the machine: `REQUESTS_MAX` ends that.
    """
    stays_at = len(judge.right(last).body) if last.stays_open and last.death is None else None

    def are_there() -> bool:
        if client.end != "open":
            return True
        came = [response for response in client.responses() if response.is_final]
        return len(came) >= wanted and (came[-1].whole or len(came[-1].body) == stays_at)

    while True:
        came_whole = upstream.came_whole
        try:
            return await client.until(are_there, f"{wanted} responses")
        except NotInTime:
            if upstream.came_whole == came_whole:
                raise


def _split(data: bytes, cuts: list[float]) -> list[bytes]:
    ends = [0, *(int(cut * len(data)) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(ends) if a < b]
