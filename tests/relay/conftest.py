"""What the tests of the relay share: gateways that are started once, and the sockets of their upstreams."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.certificates import signed
from tests.launch import Gateways, listening, port_of
from tests.relay.messages import Json
from tests.relay.rig import Place, Rig, rig_at
from tests.states import connections_by_the_table

SMALL_BODY_BYTES = 4096


@pytest.fixture(autouse=True)
def connection_steps() -> Iterator[None]:
    """The steps of the connections of each App here: all stand in the table of their states."""
    with connections_by_the_table():
        yield


@pytest.fixture(scope="session")
def fresh_gateways(tmp_path_factory: pytest.TempPathFactory) -> Gateways:
    """Processes of their own, where an interpreter's start, end or memory is tested too."""
    return Gateways(tmp_path_factory.mktemp("fresh"))


def _place(**changed: Any) -> Any:
    """A process for all tests, configured so, and the socket of its upstreams."""

    @pytest.fixture(scope="session")
    def place(gateways: Gateways) -> Iterator[Place]:
        with listening() as sock, gateways.process(port_of(sock), **changed) as gateway:
            yield Place(gateway, sock)

    return place


plain_place = _place()
small_place = _place(
    limits={
        "inspected_body_bytes_max": SMALL_BODY_BYTES,
        "inspected_event_bytes_max": SMALL_BODY_BYTES,
    },
    index={"pages_max": 20},
)
hasty_place = _place(  # it waits for nothing longer than a second
    limits={"request_timeout": "1s", "keepalive_timeout": "1s", "stall_timeout": "1s"},
    index={"crawl_timeout": "500ms", "idle_timeout": "1s"},
    upstream={"response_timeout": "500ms", "connect_timeout": "1s", "idle_timeout": "1s"},
)


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Json:
    folder = tmp_path_factory.mktemp("tls")
    signed(folder / "cert.pem", folder / "key.pem")
    return {"certificate": str(folder / "cert.pem"), "key": str(folder / "key.pem")}


@pytest.fixture(params=["process", "in_process"])
async def place(request: pytest.FixtureRequest, gateways: Gateways) -> AsyncIterator[Place]:
    """A gateway with the defaults: the process, on uvloop, and the App on asyncio's loop."""
    if request.param == "process":
        yield request.getfixturevalue("plain_place")
        return
    with listening() as sock:
        async with gateways.in_process(port_of(sock)) as gateway:
            yield Place(gateway, sock)


@pytest.fixture
async def rig(place: Place) -> AsyncIterator[Rig]:
    """An upstream and clients about a gateway with the defaults, once on each event loop."""
    async with rig_at(place) as one:
        yield one


def _rig(of: str) -> Any:
    @pytest.fixture
    async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
        async with rig_at(request.getfixturevalue(of)) as one:
            yield one

    return rig


process_rig = _rig("plain_place")  # for long tests, and for what only a process has
small_rig, hasty_rig = _rig("small_place"), _rig("hasty_place")
