#!/usr/bin/env bash
# Who: the TLS layers of asyncio (of the Python that runs this) and of PyPI uvloop 0.23.0. Run first: 2026-11-27.
# What: at the end of a connection they drop data that came over TCP, whole and in order. A server sends 15 records over TLS
#       and ends the connection behind them, by close_notify and FIN or by FIN alone. The client pauses reading, and goes
#       on later. When the TCP stream ends asyncio decrypts one buffer more, and uvloop nothing; the rest is gone, with
#       `connection_lost(None)`. With `set_read_buffer_limits(high=1, low=0)` on the TLS transport the socket is not read
#       while the layer holds ciphertext, so the end comes last. But where the client's buffer ends inside the last record
#       and no close_notify is behind it, the rest of that record is still dropped: OpenSSL has opened it, and the layer
#       does not count it.
# Rule: docs/design.md 3.5: what only the end of a connection ends is complete over TLS by a close_notify alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check uvloop==0.23.0 cryptography==46.0.3 || exit 2
cat > "$folder/ends.py" <<'PYTHON'
import asyncio
import datetime
import socket
import ssl
import sys
import threading

import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

BYTES = 15 * 16384
folder = sys.argv[1]


def certificate():
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    with open(folder + "/both.pem", "wb") as file:
        form = serialization.PrivateFormat.PKCS8
        file.write(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
        file.write(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def serve(listening, says_close):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder + "/both.pem")
    raw, _ = listening.accept()
    sock = context.wrap_socket(raw, server_side=True)
    sock.sendall(b"x" * BYTES)
    if says_close:
        try:
            sock.settimeout(0.0)
            sock.unwrap()  # sends the close_notify; it waits for none
        except (ssl.SSLError, OSError):
            pass
        sock.settimeout(10)
    sock.shutdown(socket.SHUT_WR)  # FIN
    try:
        while sock.recv(1 << 16):
            pass
    except OSError:
        pass
    sock.close()


class Reader(asyncio.BufferedProtocol):
    """It pauses at each piece, and goes on 50 ms later."""

    def __init__(self, limited, size):
        self.limited, self.got, self.buffer = limited, 0, memoryview(bytearray(size))
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport
        if self.limited:
            transport.set_read_buffer_limits(high=1, low=0)

    def get_buffer(self, _):
        return self.buffer

    def buffer_updated(self, count):
        self.got += count
        self.transport.pause_reading()
        asyncio.get_running_loop().call_later(0.05, self.resume)

    def resume(self):
        if not self.ended.done():
            self.transport.resume_reading()

    def connection_lost(self, error):
        self.ended.set_result(error)


async def read(says_close, limited, size):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening, says_close))
        thread.start()
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        port = listening.getsockname()[1]
        _, reader = await asyncio.get_running_loop().create_connection(
            lambda: Reader(limited, size), "127.0.0.1", port, ssl=context
        )
        error = await reader.ended
        await asyncio.to_thread(thread.join)
        return reader.got, error


certificate()
print("Python", sys.version.split()[0], "uvloop", uvloop.__version__, ssl.OPENSSL_VERSION)
as_known = True
for name, factory in (("asyncio", asyncio.new_event_loop), ("uvloop", uvloop.new_event_loop)):
    for limited, size in ((False, 65536), (True, 65536), (True, 10_000)):
        for says_close in (True, False):
            with asyncio.Runner(loop_factory=factory) as runner:
                got, error = runner.run(read(says_close, limited, size))
            how = "close_notify and FIN" if says_close else "FIN"
            limits = "high=1, low=0" if limited else "the default limits"
            print(f"{name}, {how}, {limits}, buffers of {size}: {got} of {BYTES} bytes, connection_lost({error!r})")
            is_cut = not limited or (size == 10_000 and not says_close)
            as_known &= error is None and (got < BYTES) == is_cut
sys.exit(not as_known)
PYTHON
"$folder/venv/bin/python" "$folder/ends.py" "$folder"
