"""Every case of the table, directly and through the gateway. The recordings agree but for what DESIGN 3 lists."""

import pytest

from tests.launch import Gateways, listening, port_of
from tests.relay.cases import about_the_limit, all_cases, timed_cases
from tests.relay.conftest import SMALL_BODY_BYTES
from tests.relay.harness import Case, Recording, compare
from tests.relay.rig import Place

_DIRECT: dict[str, Recording] = {}


@pytest.mark.usefixtures("harness_alone")
@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
async def test_case(plain_place: Place, case: Case) -> None:
    _DIRECT[case.name] = await compare(case, plain_place.listening, plain_place.gateway.port)


@pytest.mark.parametrize("case", timed_cases(), ids=lambda case: case.name)
async def test_case_on_the_loop_of_asyncio(gateways: Gateways, case: Case) -> None:
    """Without uvloop, where connections end differently; and no task is left behind."""
    with listening() as sock:
        async with gateways.in_process(port_of(sock)) as gateway:
            await compare(case, sock, gateway.port, _DIRECT.get(case.name))


@pytest.mark.usefixtures("harness_alone")
@pytest.mark.parametrize("case", list(about_the_limit(SMALL_BODY_BYTES)), ids=lambda case: case.name)
async def test_about_the_inspected_size(small_place: Place, case: Case) -> None:
    await compare(case, small_place.listening, small_place.gateway.port)
