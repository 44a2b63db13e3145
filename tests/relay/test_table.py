"""Every case of the table, directly and through the gateway: the recordings agree but for what DESIGN 3 lists."""

import pytest

from tests.relay.cases import about_the_limit, all_cases
from tests.relay.conftest import SMALL_BODY_BYTES
from tests.relay.harness import Case, Recording, compare
from tests.relay.rig import Place

_DIRECT: dict[str, Recording] = {}


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
async def test_case(place: Place, case: Case) -> None:
    _DIRECT[case.name] = await compare(case, place.listening, place.gateway.port, _DIRECT.get(case.name))


@pytest.mark.parametrize("case", list(about_the_limit(SMALL_BODY_BYTES)), ids=lambda case: case.name)
async def test_about_the_inspected_size(small_place: Place, case: Case) -> None:
    await compare(case, small_place.listening, small_place.gateway.port)
