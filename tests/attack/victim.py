"""A victim: an exchange with a secret in every part of it. It must pass untouched, whatever is beside it."""

from typing import Final

from tests.attack.readers import Reading
from tests.attack.rows import JSON
from tests.relay.http1 import Fields, Message
from tests.relay.messages import call, chunked, dumps, result

TARGET: Final = b"/victim/"
SECRET: Final = b"s3cr3t-"
_OF_ANYONE: Final = (b"host", b"content-type", b"content-length", b"transfer-encoding", b"accept-encoding")


class Victim:
    """One exchange. How its body is framed, and which way it takes through the gateway, goes by its number."""

    def __init__(self, number: int) -> None:
        self.secret = SECRET + b"%d-%d" % (number, number * 2654435761 % 1_000_003)
        self.target = TARGET + self.secret
        self.method = b"PUT" if number % 3 == 2 else b"POST"
        self.body = dumps(call("tools/call", self.secret.decode(), name="secret", token=self.secret.decode()))
        self.fields: Fields = ((b"authorization", b"Bearer " + self.secret), (b"mcp-session-id", self.secret))
        self.answer_body = dumps(result(self.secret.decode(), {"of": self.secret.decode()}))
        self.answer_fields: Fields = ((b"x-answer", self.secret),)
        lines = [self.method + b" " + self.target + b" HTTP/1.1", b"Host: localhost", JSON]
        self.request = self._framed(lines, self.fields, self.body, number % 2 == 1)
        self.answer = self._framed([b"HTTP/1.1 200 Mine"], self.answer_fields, self.answer_body, number % 5 == 1)

    @staticmethod
    def _framed(lines: list[bytes], fields: Fields, body: bytes, in_chunks: bool) -> bytes:
        framing = b"Transfer-Encoding: chunked" if in_chunks else b"Content-Length: %d" % len(body)
        lines = [*lines, *(name + b": " + value for name, value in fields), framing]
        return b"\r\n".join([*lines, b"", chunked(body) if in_chunks else body])

    def wrongs_above(self, arrived: list[Message]) -> list[str]:
        """The faults in what the upstream got of it. It must come once, as it was sent."""
        mine = [message for message in arrived if message.target == self.target]
        if len(mine) != 1:
            return [f"a victim's request reached the upstream {len(mine)} times"]
        got = mine[0]
        same = (got.method, got.body, got.trailers) == (self.method, self.body, ())
        own = {field for field in got.fields if field[0] not in _OF_ANYONE}
        return [] if same and own == set(self.fields) else [f"a victim's request became {got}"]

    def wrongs_below(self, reading: Reading) -> list[str]:
        """The faults in what it got. It must be its own answer, and nothing else."""
        its_own = len(reading.messages) == 1 and self.is_answer(reading.messages[0])
        return [] if its_own and not reading.rest and not reading.fault else [f"a victim got {reading}"]

    def is_answer(self, got: Message) -> bool:
        """Whether a response is this exchange's."""
        same = (got.start, got.body, got.trailers) == (b"HTTP 200 Mine", self.answer_body, ())
        return same and set(self.answer_fields) <= set(got.fields)
