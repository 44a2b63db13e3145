"""Guards on task operations, off unless configured: each departs from passing everything through.

    rate    each client has a token bucket; an operation takes a token, and gets 429 if none is left. A query, or a
            batch, that asks more of the server owes the rest
    ttl     the `ttl` in a request for a task has a maximum: a larger one is lowered, and nothing else changes

What another reader may take for a task operation (ambiguous_names.py) counts as one. The `ttl` in a body that passes
unread (a batch, a large or encoded one) is not looked at.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from gateway.config import GuardLimits
from gateway.errors import RateLimited, Unclear
from gateway.mcp import jsonrpc
from gateway.mcp.ambiguous_names import doubtful
from gateway.mcp.jsonrpc import Message

_OPERATIONS: Final = ("tasks/list", "tasks/get", "tasks/cancel", "tasks/result")


class GuardedCaller(Protocol):
    cost: "RequestCost | None"

    def rate_limit_key(self) -> tuple[str, bytes]:
        """The upstream's name, and `identity.rate_limit_key`."""


def guards_of(limits: GuardLimits, clock: Callable[[], float]) -> "Guards | None":
    is_any = limits.task_operations_per_second is not None or limits.task_ttl_max is not None
    return Guards(limits, clock) if is_any else None


class Guards:
    def __init__(self, limits: GuardLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._buckets: OrderedDict[tuple[str, bytes], _Bucket] = OrderedDict()  # the least recently used first

    def admit(self, message: Message, body: bytes, caller: GuardedCaller) -> bytes:
        """The body of a request as it goes on. Raises RateLimited, and Unclear."""
        task = jsonrpc.member(message.params, "task")
        doubts = doubtful(message, body)
        if not doubts and not (message.is_request and (bytes(task) or message.method in _OPERATIONS)):
            return body
        if self._limits.task_operations_per_second is not None:
            caller.cost = RequestCost(self._bucket(caller.rate_limit_key(), self._limits.task_operations_per_second))
        if self._limits.task_ttl_max is None:
            return body
        if "ttl" in doubts:
            raise Unclear(f"which ttl counts? Name it once, in small letters: {', '.join(sorted(doubts))}")
        if not _exceeds(jsonrpc.member(task, "ttl"), self._limits.task_ttl_max):
            return body
        if not message.is_strict:
            raise Unclear("the ttl is too long, and the message only nearly JSON: NaN, half a surrogate pair, no UTF-8")
        return jsonrpc.replace(body, ("params", "task", "ttl"), b"%d" % (self._limits.task_ttl_max * 1000))

    def admit_unread(self, body: bytes, caller: GuardedCaller) -> None:
        """Take what a body that passes unread counts for: 1, or 1 for each message of a batch. Raises RateLimited."""
        if self._limits.task_operations_per_second is not None:
            bucket = self._bucket(caller.rate_limit_key(), self._limits.task_operations_per_second)
            RequestCost(bucket).owe(max(1, jsonrpc.batch_size(body)))

    def _bucket(self, whose: tuple[str, bytes], per_second: float) -> "_Bucket":
        bucket = self._buckets.pop(whose, None)
        bucket = bucket or _Bucket(self._limits.task_operations_burst, per_second, self._clock)
        self._buckets[whose] = bucket
        if len(self._buckets) > self._limits.identities_max:
            self._buckets.popitem(last=False)
        return bucket


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


def _exceeds(ttl: msgspec.Raw, max_s: float) -> bool:
    """Whether a raw `ttl`, in milliseconds, is longer than `max_s`, in seconds. A `ttl` of null has no end."""
    given = bytes(ttl)
    if given == b"null":
        return True
    return given[:1].isdigit() and float(given) > max_s * 1000
