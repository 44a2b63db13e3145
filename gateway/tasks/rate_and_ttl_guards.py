"""Guards on task operations, off unless configured: each departs from passing everything through.

    rate    each client has a token bucket; an operation takes a token, and is refused if none is left. A query, or a
            batch, that asks more of the server owes the rest. Who polls a task waits for the next token instead
    ttl     the `ttl` in a request for a task has a maximum: a larger one is lowered, and nothing else changes

What another reader may take for a task operation (ids_in_messages.py) counts as one. The `ttl` in a body that passes
unread (a batch, a large or encoded one) is not looked at.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeAlias

from gateway.config import GuardLimits
from gateway.errors import RateLimited, Unclear
from gateway.mcp import jsonrpc
from gateway.mcp.client_message import ClientMessage

POLL_WAIT_S_MAX: Final = 5.0  # that a poll waits for its token: SDKs wait 30 s and more for an answer
POLLS_WAITING_MAX: Final = 100  # of one client
_POLLS: Final = ("tasks/get", "tasks/result")  # refused, they end a call whose task works on (docs/clients.md)


Whose: TypeAlias = tuple[str, bytes]
"""Whose bucket: the upstream's name, and `caller_identity.rate_limit_key`."""


def guards_of(limits: GuardLimits, clock: Callable[[], float]) -> "Guards | None":
    is_any = limits.task_operations_per_second is not None or limits.task_ttl_max is not None
    return Guards(limits, clock) if is_any else None


class Guards:
    def __init__(self, limits: GuardLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._buckets: OrderedDict[Whose, _Bucket] = OrderedDict()  # the least recently used first

    def admit(
        self, message: ClientMessage | None, unread: bytes | None, whose: Callable[[], Whose]
    ) -> "RequestCost | None":
        """Take what a request counts for. Raises RateLimited. It may have to wait.

        `unread`: what was read of a body that passes unread, but may be a message. It counts for 1; a batch for 1 for
        each message.
        """
        if message is None:
            if unread is not None and (cost := self._cost(whose)) is not None:
                cost.owe(max(1, jsonrpc.batch_size(unread)))
            return None
        if not message.doubts and not message.is_observed:
            return None
        return self._cost(whose, not message.doubts and message.method in _POLLS)

    def lowered(self, message: ClientMessage | None, body: bytes) -> bytes:
        """The body of a message, with a `ttl` that is not too long. Raises Unclear."""
        if message is None or (ttl_max := self._limits.task_ttl_max) is None:
            return body
        if "ttl" in message.doubts:
            raise Unclear(f"which ttl counts? Name it once, in small letters: {', '.join(sorted(message.doubts))}")
        ttl = message.ttl  # in milliseconds; null has no end
        is_too_long = ttl == b"null" or (ttl[:1].isdigit() and float(ttl) > ttl_max * 1000)
        if not is_too_long or not (message.doubts or message.is_observed):
            return body
        if not message.is_strict:
            what = "NaN, half a surrogate pair, no UTF-8"
            raise Unclear(f"the ttl is too long, and the message only nearly JSON: {what}")
        return b"%b%d%b" % (body[: message.ttl_at], ttl_max * 1000, body[message.ttl_at + message.ttl_bytes :])

    def _cost(self, of: Callable[[], Whose], may_wait: bool = False) -> "RequestCost | None":
        """What a request takes of its client's bucket. Raises RateLimited."""
        per_second = self._limits.task_operations_per_second
        if per_second is None:
            return None
        whose = of()
        bucket = self._buckets.pop(whose, None)
        bucket = bucket or _Bucket(self._limits.task_operations_burst, per_second, self._clock)
        self._buckets[whose] = bucket
        if len(self._buckets) > self._limits.identities_max:
            self._buckets.popitem(last=False)
        return RequestCost(bucket, may_wait)


class _Bucket:
    """Tokens of one client, some of them owed. They come back at a steady rate. Polls that wait have taken theirs."""

    __slots__ = ("_at", "_burst", "_clock", "_per_second", "_tokens", "waiting")

    def __init__(self, burst: int, per_second: float, clock: Callable[[], float]) -> None:
        self._burst, self._per_second, self._clock = burst, per_second, clock
        self._tokens, self._at = float(burst), clock()
        self.waiting = 0

    def take(self, may_wait: bool) -> float:
        """Take a token. Returns the seconds until it is there. Raises RateLimited.

        Polls that wait keep nothing else back: another operation goes before them, one token ahead of the rate.
        """
        self._refill()
        wait_s = max(0.0, (1 - self._tokens) / self._per_second)
        is_ahead = not may_wait and self.waiting and self._tokens + self.waiting >= 0
        waits = may_wait and wait_s <= POLL_WAIT_S_MAX and self.waiting < POLLS_WAITING_MAX
        if wait_s and not is_ahead and not waits:
            raise RateLimited(math.ceil(wait_s))
        self._tokens -= 1
        return wait_s if waits else 0.0

    def owe(self, tokens: int) -> None:
        self._refill()
        self._tokens -= tokens

    def _refill(self) -> None:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_second)
        self._at = now


class RequestCost:
    """What one request takes from a bucket: a token as it comes; its query owes what it asks beyond that."""

    __slots__ = ("_bucket", "_paid", "_wait_s")

    def __init__(self, bucket: _Bucket, may_wait: bool) -> None:
        self._wait_s = bucket.take(may_wait)
        self._bucket, self._paid = bucket, 1

    async def turn(self) -> None:
        """Wait until its token is there. One whose client leaves meanwhile gives it back."""
        if not self._wait_s:
            return
        bucket = self._bucket
        bucket.waiting += 1
        try:
            await asyncio.sleep(self._wait_s)
        except asyncio.CancelledError:
            bucket.owe(-1)
            raise
        finally:
            bucket.waiting -= 1

    def owe(self, asked: int) -> None:
        """A query is about to ask the server: 1 for each `tasks/get`, each crawl and each tail read (DESIGN 8.9)."""
        self._bucket.owe(asked - self._paid)
        self._paid = 0
