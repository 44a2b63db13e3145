"""The peer: the obvious streaming proxy, an aiohttp server in front of an aiohttp client, on uvloop.

`python -m tests.bench.plain_proxy ORIGIN`. A good engineer writes it in an hour: nothing in it is slow on purpose.
"""

import sys
from typing import Final

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from tests.bench import child

_HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "host"}
)
_NOT_ADDED: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class PlainProxy:
    """Passes requests to `origin`."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._client = ClientSession(
            connector=TCPConnector(limit=0),
            cookie_jar=DummyCookieJar(),
            timeout=ClientTimeout(total=None),
            auto_decompress=False,
            skip_auto_headers=_NOT_ADDED,
        )

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        async with self._client.request(
            request.method,
            URL(self._origin + request.raw_path, encoded=True),
            headers=_end_to_end(request.headers),
            data=request.content if request.body_exists else None,
            allow_redirects=False,
        ) as upstream:
            headers = _end_to_end(upstream.headers)
            response = web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=headers)
            await response.prepare(request)
            async for piece in upstream.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response


def _end_to_end(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    passed: CIMultiDict[str] = CIMultiDict(headers)
    for name in _HOP_BY_HOP:
        passed.popall(name, None)
    return passed


async def main() -> None:
    """Serve until stdin ends."""
    proxy = PlainProxy(sys.argv[1])
    server = web.Server(proxy.handle, handler_cancellation=True, access_log=None)
    runner = web.ServerRunner(server)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    port = runner.addresses[0][1]
    await child.serve({"url": f"http://127.0.0.1:{port}/mcp"}, child.idle)


if __name__ == "__main__":
    child.run(main())
