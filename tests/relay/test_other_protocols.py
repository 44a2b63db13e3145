"""What is no HTTP/1.1, from a real HAProxy: the log says which protocol it is, and quotes nothing."""

import asyncio
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.balancers import running_with
from tests.launch import Gateways, held_port, logged, port_of
from tests.peer import Client
from tests.relay.rig import Rig, rig_with
from tests.relay.wire import request

FRONT: Final = """
defaults
    mode {mode}
    timeout client 9s
    timeout server 9s
    timeout connect 9s
listen front
    bind 127.0.0.1:{port}
    server one 127.0.0.1:{to} {speaks}
"""
PROXY: Final = "it is the PROXY protocol, which is not read: turn it off"
SPOKEN: Final = {
    "send-proxy": ("http", PROXY),
    "send-proxy-v2": ("http", PROXY),
    "proto h2": ("http", "it is HTTP/2"),
    "ssl verify none": ("tcp", "it is TLS, and this port speaks plain HTTP"),
}


async def why(rig: Rig) -> str:
    return str((await logged(rig.gateway, "refused a request"))["why"])


@pytest.mark.parametrize("speaks", SPOKEN)
async def test_a_balancer_that_speaks_another_protocol_is_told_so(
    gateways: Gateways, tmp_path: Path, speaks: str
) -> None:
    """The log had a status, and no reason."""
    mode, words = SPOKEN[speaks]
    async with rig_with(gateways, log={"level": "info"}) as rig:
        with held_port() as sock:
            port = port_of(sock)
            text = FRONT.format(mode=mode, port=port, to=rig.gateway.port, speaks=speaks)
            with running_with("haproxy", text, tmp_path, port) as balancer:
                await asyncio.to_thread(balancer.wait)
                one = await Client.connect(port)
                await one.send(request(b"POST"))
                assert (await why(rig)).startswith(words)
                await one.close()


V1: Final = b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"
V2: Final = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + b"x" * 12


@pytest.mark.parametrize("sent", [V1, V2], ids=["1", "2"])
async def test_the_client_is_told_too(gateways: Gateways, sent: bytes) -> None:
    async with rig_with(gateways, log={"level": "info"}) as rig:
        answer = await rig.ask(sent + request())
        assert (answer.status, PROXY.encode() in answer.body) == (400, True)
        assert (await why(rig)).startswith(PROXY)


async def test_a_reason_quotes_nothing_that_was_sent(gateways: Gateways) -> None:
    async with rig_with(gateways, log={"level": "debug"}) as rig:
        for sent in (b"s3cr3t\r\n\r\n", b"GET /s3cr3t\xff HTTP/1.1\r\n\r\n", b"GET /\r\nX: s3cr3t\n\r\n\r\n"):
            answer = await rig.ask(sent)
            assert (answer.status, b"s3cr3t" in answer.body) == (400, not sent.startswith(b"GET /\r"))
        for words in ("a registered method", "in ASCII"):
            await logged(rig.gateway, words)
        assert "s3cr3t" not in rig.gateway.log
