"""Proxies in front that cut quiet streams: `keepalive_comments` keeps the streams open (DESIGN 3.4).

In: HAProxy and nginx, each with a limit of a second for what is quiet, and a stream that says nothing for three. Out:
it is cut without comments, and goes on with them.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deploy.balancers import running_with
from tests.launch import Gateways, held_port, listening, port_of
from tests.peer import Client
from tests.relay.messages import LAST_CHUNK, call, chunk, event, notification, post, request, stream
from tests.relay.rig import Place, rig_at

COMMENT = b": keepalive\n"
COMMENTS = 15  # in three seconds


def _haproxy(port: int, gateway: int) -> str:
    return f"""
defaults
    mode http
    timeout connect 5s
    timeout client 1s
    timeout server 1s
frontend front
    bind 127.0.0.1:{port}
    default_backend back
backend back
    server one 127.0.0.1:{gateway}
"""


def _nginx(port: int, gateway: int) -> str:
    return f"""
events {{}}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://127.0.0.1:{gateway};
            proxy_http_version 1.1;
            proxy_buffering off;
            proxy_read_timeout 1s;
        }}
    }}
}}
"""


FRONTS: dict[str, Callable[[int, int], str]] = {"haproxy": _haproxy, "nginx": _nginx}


@pytest.mark.parametrize("name", FRONTS)
@pytest.mark.parametrize("asked", [post(call("tools/call")), request()], ids=["POST", "GET"])
@pytest.mark.parametrize("comments", ["0s", "200ms"])
async def test_a_proxy_in_front_cuts_quiet_streams(tmp_path: Path, name: str, asked: bytes, comments: str) -> None:
    with (
        listening() as sock,
        held_port() as front,
        Gateways(tmp_path).process(port_of(sock), upstream={"keepalive_comments": comments}) as gateway,
        running_with(name, FRONTS[name](port_of(front), gateway.port), tmp_path, port_of(front)) as process,
    ):
        process.wait()
        async with rig_at(Place(gateway, sock)) as rig:
            one = await Client.connect(port_of(front))
            await one.send(asked)
            peer = await rig.upstream.request()
            await peer.send(stream() + chunk(event(notification("begun"))))
            await one.hears(b"begun")
            if comments == "0s":
                await one.ends()
                assert not (await one.response()).whole
            else:
                await one.hears(COMMENT, COMMENTS)
                await peer.send(chunk(event(notification("done"))), LAST_CHUNK)
                got = await one.response()
                assert got.whole
                assert got.body.replace(COMMENT, b"") == event(notification("begun")) + event(notification("done"))
            await one.close()
