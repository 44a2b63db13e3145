"""One gateway with small limits for all rows, and the event loop of everything else."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.attack.requests.limits import BODY_BYTES_MAX, HEAD_BYTES_MAX
from tests.attack.stage import Stage
from tests.attack.upstream import Upstream
from tests.forked import fork_of
from tests.launch import Gateways, listening, port_of

LIMITS = {
    "header_bytes_max": HEAD_BYTES_MAX,
    "inspected_body_bytes_max": BODY_BYTES_MAX,
    "inspected_event_bytes_max": BODY_BYTES_MAX,
}


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(debug=False) as one:  # whose debug mode would cost most of the time
        yield one


@pytest.fixture(scope="session")
def stage(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The process, and an upstream that stays; identity is narrowed, so that a header of it can be named."""
    gateways = Gateways(tmp_path_factory.mktemp("attack"), fork_of)
    identity = {"identity_headers": ["Authorization", "X-Tenant"]}
    with listening() as sock, gateways.process(port_of(sock), limits=LIMITS, upstream=identity) as gateway:
        upstream = Upstream(sock)
        one = Stage(gateway.port, upstream, b"127.0.0.1:%d" % port_of(sock))
        runner.run(one.begin())
        yield one
        runner.run(one.clear())
        upstream.shut()
