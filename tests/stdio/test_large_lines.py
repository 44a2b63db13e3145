"""A response to a request of the gateway's own that is too large to be read, wherever its id stands (DESIGN 11.3)."""

import asyncio

import pytest

from gateway.errors import UpstreamBroken
from gateway.stdio.lines import Line
from gateway.stdio.messages import LargeLine, Outlet, StdioChannel
from gateway.transport.memory import Buffers

REQUEST = b'{"jsonrpc":"2.0","id":"g1","method":"tasks/list"}'


class _Sink:
    """Takes whatever it is given."""

    def write(self, data: bytes) -> None:
        pass

    async def drain(self) -> None:
        pass


@pytest.mark.parametrize(
    "form",
    [
        b'{"jsonrpc":"2.0","id":"g1","result":{"x":"%b"}}\n',
        b'{"jsonrpc":"2.0","result":{"x":"%b"},"id":"g1"}\n',
        b'{"jsonrpc":"2.0","x":1,"result":{"x":"%b"},"id":"g1","extra":1}\n',
    ],
)
async def test_its_asker_is_told(form: bytes) -> None:
    buffers = Buffers(1 << 24)
    channel = StdioChannel(Outlet(_Sink(), buffers), "g")  # type: ignore[arg-type]
    asking = asyncio.ensure_future(channel.ask(REQUEST, b'"g1"'))
    await asyncio.sleep(0)
    data = form % (b"a" * 10_000)
    large = LargeLine(data[:5000], channel, buffers)
    assert large.feed(Line(data[:5000], whole=False, ended=False)) == []
    assert large.feed(Line(data[5000:], whole=False)) == []
    large.close()
    with pytest.raises(UpstreamBroken, match="cannot be read: too large"):
        await asyncio.wait_for(asking, 1)
    assert len(channel) == 0
