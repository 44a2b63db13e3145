"""Node and nginx over TLS that close behind each answer: nothing is cut (RFC 9112, 9.8)."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.certificates import Authority
from tests.deploy.balancers import running_with
from tests.launch import Gateways, held_port, is_taken, port_of, started
from tests.relay.messages import filtered, post
from tests.relay.rig import told
from tests.relay.test_ends import cut, exchanged, sized
from tests.tools import NODE, node

SIZES: Final = [250_000 + 49_157 * number for number in range(20)]
NGINX: Final = """
user root;  # the folders of tests are closed to others
events {}
http {
    access_log off;
    keepalive_timeout 0;
    server { listen 127.0.0.1:PORT ssl; root .; ssl_certificate CERT; ssl_certificate_key KEY; }
}
"""


@contextmanager
def closing(which: str, folder: Path, cert: str, key: str) -> Iterator[int]:
    """Its port."""
    with held_port() as sock:
        port = port_of(sock)
        if which == "nginx":
            for size in SIZES:
                (folder / str(size)).write_bytes(sized(b"GET /%d " % size))
            text = NGINX.replace("PORT", str(port)).replace("CERT", cert).replace("KEY", key)
            running = running_with("nginx", text, folder, port)
        else:
            command = [node(), str(NODE / "closing.mjs"), str(port), cert, key]
            running = started("node", command, folder / "node.log", "", lambda: is_taken(port))
        with running as process:
            process.wait()
            yield port


@pytest.mark.parametrize("which", ["node", "nginx"])
async def test_an_answer_of_a_server_that_closes_is_whole(tmp_path: Path, which: str) -> None:
    """Above 250 kB between a tenth and all of them were cut, and a filtered list got 502."""
    authority = Authority(tmp_path)
    with closing(which, tmp_path, *authority.certificate("localhost")) as port:
        upstream = {"url": f"https://127.0.0.1:{port}/mcp", "tls": {"ca": authority.ca, "server_name": "localhost"}}
        with Gateways(tmp_path).process(1, upstream=upstream) as gateway:
            assert await cut(gateway.port, SIZES) == []
            if which == "node":
                asked = post(filtered(), b"Connection: close")
                answer = await asyncio.to_thread(exchanged, gateway.port, asked)
                assert told(answer)[0]["result"]["_meta"]["taskgate/total"] == 2000
