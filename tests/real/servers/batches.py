"""A server that takes JSON-RPC batches, as revision 2025-03-26 has them, and has tasks, but no sessions."""

import argparse

from aiohttp import web

from tests.real.servers import by_user
from tests.real.servers.by_user import Json, Refused

tasks: dict[str, Json] = {}


def answer(message: Json) -> Json:
    try:
        said = {"result": by_user.answer(tasks, message["method"], message.get("params", {}), page_size=None)}
    except Refused as refused:
        said = {"error": dict(zip(("code", "message"), refused.args, strict=True))}
    return {"jsonrpc": "2.0", "id": message["id"], **said}


async def post(request: web.Request) -> web.Response:
    body = await request.json()
    answers = [answer(each) for each in (body if isinstance(body, list) else [body]) if "id" in each]
    if not answers:
        return web.Response(status=202 if body else 400)
    return web.json_response(answers if isinstance(body, list) else answers[0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    app = web.Application()
    app.router.add_post("/mcp", post)
    web.run_app(app, host="127.0.0.1", port=parser.parse_args().port, print=None)


if __name__ == "__main__":
    main()
