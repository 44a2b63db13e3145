"""The errors of requests, as one tree. Each class has its HTTP status and JSON-RPC code.

`proxy.py` makes HTTP responses of them; logs and metrics have the status, whatever went out. Requests
that cannot be read get a `Refusal` of `http/request_parser.py` instead.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from http import HTTPStatus
from typing import Final, TypeVar

from gateway.mcp import jsonrpc
from gateway.mcp.jsonrpc import CANNOT_ANSWER, INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST

# A server without tasks, and a client that a server does not serve: the Python SDK's says so before `initialized`.
_REFUSALS: Final = (jsonrpc.METHOD_NOT_FOUND, INVALID_REQUEST, INVALID_PARAMS)
_E = TypeVar("_E", bound=BaseException)

REFUSALS: Final = (401, 403, 404)  # statuses by which a server may say that it serves a caller no more (DESIGN 7.4)

TEXT_CHARS_MAX: Final = 1000  # of an error: it may have a peer's words in it, and goes into answers, logs and the page


@lru_cache(maxsize=1024)
def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return character if character.isprintable() else re.sub("....", r"\\u\g<0>", units)


def printable(text: str) -> str:
    r"""A text with each character that is not printable, such as C1 controls and U+2028, as JSON escapes it: \u0085."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def shown(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """A text that may have a peer's words in it, as errors show it: printable, and if it is long without its middle."""
    return _cut(printable(_cut(text, chars_max)), chars_max)


def _cut(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[: chars_max // 2]}...{text[-(chars_max // 2) :]}"


def without_frames(error: _E) -> _E:
    """A handled error that may be kept. The frames that it passed hold what holds it, in a cycle that stays (9.5)."""
    error.__traceback__ = error.__context__ = None
    return error


class GatewayError(Exception):
    """An error that a client gets in place of an answer."""

    status = 502
    code = INTERNAL_ERROR
    refuses = False  # whether it says no to who asks, and so nothing has failed
    text = ""  # unless another is given
    before: str | None = None  # what a client reads before the text, if not the words of the status
    retry_after_s: float | None = None  # how long to wait; None if that is unknown

    def __init__(self, text: str = "") -> None:
        super().__init__(shown(text or self.text))

    @property
    def kind(self) -> str:
        return type(self).__name__

    def message(self, raw_id: bytes) -> bytes:
        """The error as a JSON-RPC response. `raw_id` is the id of the request, empty if it is unknown."""
        before = f"{HTTPStatus(self.status).phrase}: " if self.before is None else self.before
        data = None if self.retry_after_s is None else {"retryAfterSeconds": self.retry_after_s}
        return jsonrpc.error(raw_id, self.code, f"{before}{self}", data)


class Ambiguous(GatewayError):  # a request that two may read differently (DESIGN 3.2, 8.16)
    status, code = 400, INVALID_REQUEST


class Forbidden(GatewayError):  # `Host` or `Origin` is refused (DESIGN 7.10)
    status, code = 403, INVALID_REQUEST


class Internal(GatewayError):
    """A fault of the gateway itself. Clients are not told which; the log has its traceback."""

    status, text = 500, "a fault of taskgate itself; its log says more"


class NoUpstream(GatewayError):  # no upstream is configured for the host and path
    status, code = 404, INVALID_REQUEST


class Loop(GatewayError):  # an upstream's address leads back to the gateway
    status, code = 508, INVALID_REQUEST


class RateLimited(GatewayError):  # too many task operations of one identity
    status, code, refuses = 429, INVALID_REQUEST, True

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"too many task operations; try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class Unclear(GatewayError):  # a `ttl` that two servers may read differently (DESIGN 8.9)
    status, code, refuses, before = 200, INVALID_PARAMS, True, "Invalid params: "


class NoFilter(Unclear):  # a filter for a list that the gateway does not answer (DESIGN 5.10)
    status = 400


class NoTasks(Unclear):  # tasks where nothing tells whose they are (DESIGN 8.16)
    status = 400


class UnknownTask(GatewayError):
    """A task that is not the caller's (DESIGN 8.16). Its text is that of servers, of an id that they do not know."""

    status, code, refuses, before = 200, INVALID_PARAMS, True, ""
    text = "Failed to retrieve task: Task not found"


class Overloaded(GatewayError):  # a limit is reached; a later try may succeed
    status = 503


class UpstreamUnreachable(GatewayError):
    """No connection."""


class UpstreamBroken(GatewayError):
    """The answer broke off, or is no valid answer."""


class UpstreamTimeout(GatewayError):  # no answer in time
    status = 504


class UpstreamRefused(GatewayError):
    """An HTTP error or a redirect for the crawler, which the client gets (5.8). `retry_after_s`: None if not said."""

    def __init__(
        self,
        status: int,
        reason: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        crawl_id: int,
        said: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        """`said` is what the answer says of the address that was asked, in words."""
        super().__init__(f"the upstream answered {status}{f': {said}' if said else ''}")
        self.retry_after_s = retry_after_s
        self.status, self.reason, self.headers, self.body, self.crawl_id = status, reason, headers, body, crawl_id
        self.before = f"{reason.decode('latin-1')}: "
        self.refuses = status < 500 and status != 429  # what is wrong is the client's request, or the address in `url`

    @property
    def answer(self) -> jsonrpc.Message | None:
        """The JSON-RPC error about that very request, which a server may send with any status."""
        message = jsonrpc.parse(self.body)
        is_answer = message is not None and bytes(message.error) and message.answers(self.crawl_id)
        return message if is_answer else None

    @property
    def is_of_caller(self) -> bool:
        """Whether the server may serve the caller no more. Who answers a request with a 404 knows its session."""
        return self.status in REFUSALS and not (self.status == 404 and self.answer is not None)


class UpstreamFailed(GatewayError):
    """The upstream answered the crawler with a JSON-RPC error. The client gets that error (DESIGN 5.8)."""

    status = 200

    def __init__(self, error: bytes) -> None:
        super().__init__("the upstream answered with a JSON-RPC error")
        self.error = error
        self.code = jsonrpc.code_of(error) or INTERNAL_ERROR
        self.refuses = self.code in _REFUSALS

    def message(self, raw_id: bytes) -> bytes:
        return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (raw_id, self.error)


class CannotAnswer(GatewayError):
    """A filtered list that cannot be had, though nothing has failed. The message says why, and what to ask instead."""

    status, code, refuses, before = 200, CANNOT_ANSWER, True, ""


class TooLarge(CannotAnswer):
    """A session is larger than an index may be (DESIGN 7.8). `what` it has, with the key of the limit."""

    def __init__(self, what: str) -> None:
        super().__init__(f"this session cannot be filtered: it has {what}; unfiltered lists, and `taskIds`, still work")
