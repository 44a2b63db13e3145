"""The stages that the tests of stdio share."""

from collections.abc import AsyncIterator

import pytest

from gateway.config import Limits, StdioConfig
from tests.stdio.harness import Stage, through

SMALL = StdioConfig(limits=Limits(inspected_body_bytes_max=1024, held_bytes_max=1 << 20))


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    """A client and a server that have said hello."""
    async with through() as one:
        await one.initialize()
        yield one


@pytest.fixture
async def small() -> AsyncIterator[Stage]:
    """The same, and the gateway's limits are small."""
    async with through(SMALL) as one:
        await one.initialize()
        yield one
