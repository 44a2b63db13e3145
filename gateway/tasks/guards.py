"""Guards on task operations, off unless configured: each departs from passing everything through.

    rate    each client has a token bucket; an operation takes a token, and gets 429 if none is left. A query takes
            one for each request that it needs: `Toll` says when
    ttl     the `ttl` in a request for a task has a maximum: a larger one is lowered, and nothing else changes

In: a request, and its caller. Out: its body as it goes on, or RateLimited. Always: a request that is no task operation
goes on unchanged. The `ttl` in a body that passes unread (a batch, a large or encoded one) is not looked at.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from gateway.config import GuardLimits
from gateway.errors import RateLimited
from gateway.mcp import jsonrpc
from gateway.mcp.jsonrpc import Message

_OPERATIONS: Final = ("tasks/list", "tasks/get", "tasks/cancel", "tasks/result")


class GuardedCaller(Protocol):
    """The caller of a request."""

    toll: "Toll | None"

    def payer(self) -> tuple[str, bytes]:
        """The upstream's name, and who pays (`identity.payer`)."""


def guards_of(limits: GuardLimits, clock: Callable[[], float]) -> "Guards | None":
    """The guards that are configured; None if there are none."""
    is_any = limits.task_operations_per_second is not None or limits.task_ttl_max is not None
    return Guards(limits, clock) if is_any else None


class Guards:
    """The guards of all upstreams."""

    def __init__(self, limits: GuardLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._buckets: OrderedDict[tuple[str, bytes], _Bucket] = OrderedDict()  # the least recently used first

    def admit(self, message: Message, body: bytes, caller: GuardedCaller) -> bytes:
        """The body of a request as it goes on. Raises RateLimited."""
        if not message.is_request:
            return body
        task = jsonrpc.member(message.params, "task")
        if not bytes(task) and message.method not in _OPERATIONS:
            return body
        if self._limits.task_operations_per_second is not None:
            caller.toll = Toll(self._bucket(caller.payer(), self._limits.task_operations_per_second))
        if self._limits.task_ttl_max is None or not _exceeds(jsonrpc.member(task, "ttl"), self._limits.task_ttl_max):
            return body
        return jsonrpc.replace(body, ("params", "task", "ttl"), b"%d" % (self._limits.task_ttl_max * 1000))

    def admit_unread(self, body: bytes, caller: GuardedCaller) -> None:
        """Take the price of a body that passes unread: 1, or 1 for each message of a batch. Raises RateLimited."""
        if self._limits.task_operations_per_second is not None:
            bucket = self._bucket(caller.payer(), self._limits.task_operations_per_second)
            bucket.take(max(1, jsonrpc.batch_size(body)))

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

    def take(self, price: int) -> None:
        """Take a price; one above the bucket's size from a full bucket, which then owes. Raises RateLimited."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_second)
        self._at = now
        lacking = min(price, self._burst) - self._tokens
        if lacking > 0:
            raise RateLimited(math.ceil(lacking / self._per_second), price)
        self._tokens -= price

    def add(self, tokens: int) -> None:
        """Give tokens back, or take those that are owed, whatever is left."""
        self._tokens += tokens


class Toll:
    """What one request pays to a bucket (DESIGN 8.9).

    when                               what it takes                            the bucket has less
    it comes                           1                                        429
    a query asks the server at last    1 for each `tasks/get`, each crawl and   429; what it took goes back, and
                                       each look, less the 1 that it took       nothing was asked
    it asks more in a later step       the same                                 the bucket owes it
    """

    __slots__ = ("_bucket", "_is_reserved", "_paid")

    def __init__(self, bucket: _Bucket) -> None:
        """The request comes. Raises RateLimited."""
        bucket.take(1)
        self._bucket = bucket
        self._paid = 1  # and not used up
        self._is_reserved = False

    def reserve(self, price: int) -> None:
        """Take what a query's first step asks, before it asks. Raises RateLimited."""
        self._bucket.add(self._paid)
        self._paid = 0
        self._bucket.take(price)
        self._paid, self._is_reserved = price, True

    def pay(self, price: int) -> None:
        """A step of a query is about to ask. The first one raises RateLimited, unless its price is reserved."""
        if not self._is_reserved:
            self.reserve(price)
        used = min(price, self._paid)
        self._paid -= used
        self._bucket.add(used - price)


def _exceeds(ttl: msgspec.Raw, max_s: float) -> bool:
    """Whether a raw `ttl`, in milliseconds, is longer than `max_s`, in seconds. A `ttl` of null has no end."""
    given = bytes(ttl)
    if given == b"null":
        return True
    return given[:1].isdigit() and float(given) > max_s * 1000
