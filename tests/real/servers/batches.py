"""A server that takes JSON-RPC batches, as revision 2025-03-26 has them, and has tasks.

    python -m tests.real.servers.batches --port 3001

A batch is answered with a batch: JSON, or with `X-Answer: stream` one event. Every answer has in `_meta.received` the
very bytes of the request, as hexadecimal digits, and is written in a way that no JSON library would. `tools/call` makes
a task and `tasks/cancel` ends it; there are no sessions.
"""

import argparse
import json

from aiohttp import web

from tests.real.servers import by_user
from tests.real.servers.by_user import Json, Refused

tasks: dict[str, Json] = {}


def answer(message: Json, received: bytes) -> str:
    try:
        result = by_user.answer(tasks, message["method"], message.get("params", {}), page_size=None)
        result = {**result, "_meta": {"received": received.hex()}}
        written = f'"result" : {json.dumps(result)}, "more":12345678901234567890.10'
    except Refused as refused:
        code, words = refused.args
        written = f'"error":{{"code":{code},"message":{json.dumps(words)}}}'
    return f'{{ "id":{json.dumps(message["id"])},\t{written}, "jsonrpc":"2.0" }}'


async def post(request: web.Request) -> web.Response:
    received = await request.read()
    body = json.loads(received)
    answers = [answer(each, received) for each in (body if isinstance(body, list) else [body]) if "id" in each]
    if not answers:
        return web.Response(status=202 if body else 400)
    text = f"[ {' ,'.join(answers)} ]" if isinstance(body, list) else answers[0]
    if request.headers.get("X-Answer") == "stream":
        return web.Response(text=f": batch\r\nid:1\r\ndata: {text}\r\n\r\n", content_type="text/event-stream")
    return web.Response(text=text, content_type="application/json")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    app = web.Application()
    app.router.add_post("/mcp", post)
    web.run_app(app, host="127.0.0.1", port=parser.parse_args().port, print=None)


if __name__ == "__main__":
    main()
