"""Connections with TLS, from the moment they are accepted to the end of their handshake.

In: the sockets of a server. Out: connections that can be read, the listener's; of each handshake that fails, why.
Always: a connection counts from the beginning; a handshake that lasts too long is ended; plain HTTP gets a 400 that
says so. The event loop's own server tells nobody of a handshake that fails.
"""

import asyncio
import errno
import re
import socket
import ssl
from typing import Any, Final

from gateway.downstream.client_connection import ClientConnection, Listener
from gateway.errors import without_frames
from gateway.http.request_parser import Refusal, other_protocol

_AT_ONCE: Final = 100  # connections that one turn of the loop accepts
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_S: Final = 1.0  # until descriptors may be free again
_PEEKED_BYTES: Final = 32  # more than a method has
_PLAIN_HTTP: Final = re.compile(rb"[A-Z-]+(?: |\Z)")
_SPEAKS_TLS: Final = "this port speaks TLS: use its address with https://"

# What OpenSSL names its errors. All others are `broken`.
_NAMED: Final = (
    ("not_tls", re.compile("WRONG_VERSION_NUMBER|UNKNOWN_PROTOCOL|HTTP_REQUEST")),
    ("certificate", re.compile("ALERT.*(CERTIFICATE|UNKNOWN_CA)")),  # the client refuses that of the listener
    ("version", re.compile("PROTOCOL|VERSION_TOO_LOW")),
    ("cipher", re.compile("NO_SHARED|NO_SUITABLE")),
)


class TlsServer:
    """Accepts connections at the sockets of an event loop's server, which was made but does not serve itself."""

    def __init__(self, server: asyncio.Server, context: ssl.SSLContext, listener: Listener, backlog: int) -> None:
        self.context = context
        self.listener = listener
        self.loop = server.get_loop()
        self._server = server
        self._accepting = [sock.dup() for sock in server.sockets]
        for sock in self._accepting:
            sock.setblocking(False)
            sock.listen(backlog)
            self.loop.add_reader(sock, self._accept, sock)

    def close(self) -> None:
        for sock in self._accepting:
            self.loop.remove_reader(sock)
            sock.close()
        self._server.close()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self.listener.refused("descriptors")
                self.loop.remove_reader(listening)
                self.loop.call_later(_PAUSE_S, self._accept_again, listening)
                return
            sock.setblocking(False)
            TlsConnection(self, sock, peer)

    def _accept_again(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self.loop.add_reader(listening, self._accept, listening)


class TlsConnection(ClientConnection):
    """A client's connection with TLS, or with plain HTTP that is refused."""

    def __init__(self, server: TlsServer, sock: socket.socket, peer: object) -> None:
        super().__init__(server.listener, server.loop, "HANDSHAKE")
        self._server = server
        self._sock = sock
        self._handshake: asyncio.Task[Any] | None = None
        self.name_client(peer)
        self.loop.add_reader(self._sock, self._peek)
        self._refused = self._owner.opened(self)  # it counts; what refuses it is sent behind the handshake

    def _peek(self) -> None:
        """The first bytes have come, or the client has left. They stay in the socket, for TLS to read."""
        self.loop.remove_reader(self._sock)
        try:
            first = self._sock.recv(_PEEKED_BYTES, socket.MSG_PEEK)
        except OSError:
            first = b""
        if not first:
            self._fail("client_left")
            return
        if _PLAIN_HTTP.match(first):
            self._refused = self._refused or Refusal(other_protocol(first) or _SPEAKS_TLS)
            self._server.listener.handshake_failed(self, "plain_http", "")
            made = self.loop.connect_accepted_socket(lambda: self, self._sock)
        else:
            tls, limit_s = self._server.context, self.limits.request_timeout
            made = self.loop.connect_accepted_socket(lambda: self, self._sock, ssl=tls, ssl_handshake_timeout=limit_s)
        self._handshake = self.loop.create_task(made)
        self._handshake.add_done_callback(self._ended)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._enter("IDLE", self.loop.time() + self.limits.request_timeout)
        super().connection_made(transport)
        if self._refused is not None:
            self._refuse(self._refused)

    def _ended(self, handshake: "asyncio.Task[Any]") -> None:
        self._handshake = None
        if handshake.cancelled():
            self._fail()
        elif (error := handshake.exception()) is not None:
            self._fail(*_reason(without_frames(error)))

    def close(self) -> None:
        if self.state != "HANDSHAKE":
            super().close()
        elif self._handshake is not None:
            self._handshake.cancel()
        else:
            self.loop.remove_reader(self._sock)
            self._fail()

    def _fail(self, reason: str = "", said: str = "") -> None:
        """The handshake has failed; without a reason only if it is late: else the gateway closes its connections."""
        self._sock.close()
        if reason or self.loop.time() > self.deadline:
            self._server.listener.handshake_failed(self, reason or "timeout", said)
        self.connection_lost(None)


def _reason(error: BaseException) -> tuple[str, str]:
    """Why a handshake failed: the value of the metric's label, and OpenSSL's name of it."""
    if not isinstance(error, ssl.SSLError):
        return "timeout" if isinstance(error, ConnectionAbortedError) else "client_left", ""
    said = error.reason or ""
    return next((reason for reason, names in _NAMED if names.search(said)), "broken"), said
