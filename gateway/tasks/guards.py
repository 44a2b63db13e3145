"""Guards on task operations, off unless configured: each departs from passing everything through.

    rate    each identity has a token bucket; an operation takes a token, and gets 429 if none is left
    ttl     the `ttl` in a request for a task has a maximum: a larger one is lowered, and nothing else changes

In: a request, and its caller. Out: its body as it goes on, or RateLimited. Always: a request that is no task operation
goes on unchanged. Bodies that pass unread (batches, large or encoded bodies) are not guarded.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from gateway.config import GuardLimits
from gateway.errors import RateLimited
from gateway.identity import Key
from gateway.mcp import jsonrpc
from gateway.mcp.jsonrpc import Message

_OPERATIONS: Final = ("tasks/list", "tasks/get", "tasks/cancel", "tasks/result")


class GuardedCaller(Protocol):
    """The caller of a request."""

    @property
    def key(self) -> Key:
        """The key of the caller's session."""


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
            self._take(caller.key, self._limits.task_operations_per_second)
        if self._limits.task_ttl_max is None or not _exceeds(jsonrpc.member(task, "ttl"), self._limits.task_ttl_max):
            return body
        return jsonrpc.replace(body, ("params", "task", "ttl"), b"%d" % (self._limits.task_ttl_max * 1000))

    def _take(self, key: Key, per_second: float) -> None:
        now, whose = self._clock(), (key.upstream, key.identity)
        bucket = self._buckets.pop(whose, None) or _Bucket(self._limits.task_operations_burst, now)
        self._buckets[whose] = bucket
        if len(self._buckets) > self._limits.identities_max:
            self._buckets.popitem(last=False)
        wait_s = bucket.take(now, per_second, self._limits.task_operations_burst)
        if wait_s:
            raise RateLimited(math.ceil(wait_s))


class _Bucket:
    """Tokens of one identity. They come back at a steady rate."""

    __slots__ = ("at", "tokens")

    def __init__(self, tokens: float, at: float) -> None:
        self.tokens = tokens
        self.at = at

    def take(self, now: float, per_second: float, burst: int) -> float:
        """Take a token. Returns 0; if there is no token, the seconds until there is one."""
        self.tokens = min(burst, self.tokens + (now - self.at) * per_second)
        self.at = now
        if self.tokens < 1:
            return (1 - self.tokens) / per_second
        self.tokens -= 1
        return 0.0


def _exceeds(ttl: msgspec.Raw, max_s: float) -> bool:
    """Whether a raw `ttl`, in milliseconds, is longer than `max_s`, in seconds. A `ttl` of null has no end."""
    given = bytes(ttl)
    if given == b"null":
        return True
    return given[:1].isdigit() and float(given) > max_s * 1000
