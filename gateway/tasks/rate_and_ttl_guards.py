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
from typing import Final, Protocol

from gateway.config import GuardLimits
from gateway.errors import RateLimited, Unclear
from gateway.mcp import jsonrpc
from gateway.mcp.jsonrpc import Message
from gateway.owners.ids_in_messages import doubtful

POLL_WAIT_S_MAX: Final = 5.0  # that a poll waits for its token: SDKs wait 30 s and more for an answer
POLLS_WAITING_MAX: Final = 100  # of one client
_POLLS: Final = ("tasks/get", "tasks/result")  # refused, they end a call whose task works on (docs/clients.md)


class GuardedCaller(Protocol):
    def rate_limit_key(self) -> tuple[str, bytes]:
        """The upstream's name, and `identity.rate_limit_key`."""


class GuardedRequest(Protocol):
    taken: bytes
    """What was read of its body."""

    @property
    def is_post_for_stream(self) -> bool:
        """Whether a server may read it as a message, though the gateway does not."""

    def replace_body(self, body: bytes) -> None:
        """Another body goes up."""


def guards_of(limits: GuardLimits, clock: Callable[[], float]) -> "Guards | None":
    is_any = limits.task_operations_per_second is not None or limits.task_ttl_max is not None
    return Guards(limits, clock) if is_any else None


class Guards:
    def __init__(self, limits: GuardLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._buckets: OrderedDict[tuple[str, bytes], _Bucket] = OrderedDict()  # the least recently used first

    def admit(self, request: GuardedRequest, message: Message | None, caller: GuardedCaller) -> "RequestCost | None":
        """Take what a request counts for, and lower its ttl. Raises RateLimited, and Unclear. It may have to wait.

        A body that passes unread counts for 1, or for 1 for each message of a batch.
        """
        body = request.taken
        if message is None:
            if request.is_post_for_stream and (cost := self._cost(caller)) is not None:
                cost.owe(max(1, jsonrpc.batch_size(body)))
            return None
        doubts = doubtful(message, body)
        if not doubts and not message.is_observed:
            return None
        cost, ttl_max = self._cost(caller, not doubts and message.method in _POLLS), self._limits.task_ttl_max
        if ttl_max is None:
            return cost
        if "ttl" in doubts:
            raise Unclear(f"which ttl counts? Name it once, in small letters: {', '.join(sorted(doubts))}")
        ttl = bytes(jsonrpc.member(message.task, "ttl"))  # in milliseconds; null has no end
        if ttl == b"null" or (ttl[:1].isdigit() and float(ttl) > ttl_max * 1000):
            if not message.is_strict:
                what = "NaN, half a surrogate pair, no UTF-8"
                raise Unclear(f"the ttl is too long, and the message only nearly JSON: {what}")
            request.replace_body(jsonrpc.replace(body, ("params", "task", "ttl"), b"%d" % (ttl_max * 1000)))
        return cost

    def _cost(self, caller: GuardedCaller, may_wait: bool = False) -> "RequestCost | None":
        """What a request takes of its client's bucket. Raises RateLimited."""
        per_second = self._limits.task_operations_per_second
        if per_second is None:
            return None
        whose = caller.rate_limit_key()
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
