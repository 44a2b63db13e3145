"""Every case of the table, directly and through the gateway. The recordings agree but for what DESIGN 3 lists."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from tests.launch import Gateways, listening, port_of
from tests.relay.cases import about_the_limit, all_cases, timed_cases
from tests.relay.conftest import SMALL_BODY_BYTES
from tests.relay.harness import Case, compare
from tests.relay.rig import Place


@pytest.fixture(scope="module")
def straight() -> Iterator[socket.socket]:
    """Where the upstream of the direct runs listens, so that both runs of a case can be under way at once."""
    with listening() as sock:
        yield sock


@pytest.fixture(scope="module")
def own_loop(gateways: Gateways) -> Iterator[tuple[asyncio.Runner, Place]]:
    """An App on asyncio's loop for all cases. In the end no task may be left."""
    with asyncio.Runner(debug=True) as runner, listening() as sock:
        running = gateways.in_process(port_of(sock))
        yield runner, Place(runner.run(running.__aenter__()), sock)
        runner.run(running.__aexit__(None, None, None))


@pytest.mark.usefixtures("harness_alone")
@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
async def test_case(straight: socket.socket, plain_place: Place, case: Case) -> None:
    await compare(case, straight, plain_place.listening, plain_place.gateway.port)


@pytest.mark.parametrize("case", timed_cases(), ids=lambda case: case.name)
def test_case_on_the_loop_of_asyncio(
    straight: socket.socket, own_loop: tuple[asyncio.Runner, Place], case: Case
) -> None:
    """Without uvloop, where connections end differently."""
    runner, place = own_loop
    runner.run(compare(case, straight, place.listening, place.gateway.port))


@pytest.mark.usefixtures("harness_alone")
@pytest.mark.parametrize("case", list(about_the_limit(SMALL_BODY_BYTES)), ids=lambda case: case.name)
async def test_about_the_inspected_size(straight: socket.socket, small_place: Place, case: Case) -> None:
    await compare(case, straight, small_place.listening, small_place.gateway.port)
