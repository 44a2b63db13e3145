"""Guards on task operations, off unless configured: each departs from passing everything through.

    rate    each client has a token bucket; an operation takes a token, and gets 429 if none is left. A query, or a
            batch, that asks more of the server owes the rest
    ttl     the `ttl` in a request for a task has a maximum: a larger one is lowered, and nothing else changes

What another reader may take for a task operation (ids_in_messages.py) counts as one. The `ttl` in a body that passes
unread (a batch, a large or encoded one) is not looked at.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from gateway.config import GuardLimits
from gateway.errors import RateLimited, Unclear
from gateway.mcp import jsonrpc
from gateway.mcp.jsonrpc import Message
from gateway.owners.ids_in_messages import doubtful


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
        """Take what a request counts for, and lower its ttl. Raises RateLimited, and Unclear.

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
        cost, ttl_max = self._cost(caller), self._limits.task_ttl_max
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

    def _cost(self, caller: GuardedCaller) -> "RequestCost | None":
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
        return RequestCost(bucket)


class _Bucket:
    """Tokens of one client, some of them owed. They come back at a steady rate."""

    __slots__ = ("_at", "_burst", "_clock", "_per_second", "_tokens")

    def __init__(self, burst: int, per_second: float, clock: Callable[[], float]) -> None:
        self._burst, self._per_second, self._clock = burst, per_second, clock
        self._tokens, self._at = float(burst), clock()

    def take(self) -> None:
        """Take a token. Raises RateLimited if there is none."""
        self._refill()
        if self._tokens < 1:
            raise RateLimited(math.ceil((1 - self._tokens) / self._per_second))
        self._tokens -= 1

    def owe(self, tokens: int) -> None:
        self._refill()
        self._tokens -= tokens

    def _refill(self) -> None:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_second)
        self._at = now


class RequestCost:
    """What one request takes from a bucket: a token as it comes; its query owes what it asks beyond that."""

    __slots__ = ("_bucket", "_paid")

    def __init__(self, bucket: _Bucket) -> None:
        bucket.take()
        self._bucket, self._paid = bucket, 1

    def owe(self, asked: int) -> None:
        """A query is about to ask the server: 1 for each `tasks/get`, each crawl and each tail read (DESIGN 8.9)."""
        self._bucket.owe(asked - self._paid)
        self._paid = 0
