"""What these tests share."""

import asyncio

import pytest

from tests.forked import fork_of
from tests.launch import Gateways


@pytest.fixture(scope="session")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Gateways:
    return Gateways(tmp_path_factory.mktemp("world"), fork_of)  # most of a start is imports


@pytest.fixture
async def harness_alone() -> None:
    """No debug mode for a loop on which nothing but the harness runs; it costs most of the time of a test."""
    asyncio.get_running_loop().set_debug(False)
