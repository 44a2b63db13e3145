"""A stateless server that tells its users apart by a header alone: no sessions, many tenants behind one address.

    python -m tests.real.servers.by_user --port 3001

A user is who `Authorization` or `X-Api-Key` says, at the endpoint (/mcp, or any path that ends so) that was asked:
/other/mcp is another tenant. `tools/call` with `task` makes a task that works until it is cancelled, its label in
`statusMessage`; `tasks/list` has pages of 3. Every answer is compressed for who accepts that.
"""

import argparse
import uuid
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

Json = dict[str, Any]

PAGE_SIZE = 3
CAPABILITIES: Json = {"tools": {}, "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}
tasks_of: defaultdict[tuple[str, str], dict[str, Json]] = defaultdict(dict)


class Refused(Exception):
    """What becomes a JSON-RPC error: its code and message."""


def now() -> str:
    return datetime.now(UTC).isoformat()


def answer(tasks: dict[str, Json], method: str, params: Json, page_size: int | None = PAGE_SIZE) -> Json:
    """The result of one request of the user whose tasks these are, all on one page if no size is given."""
    match method:
        case "initialize":
            server = {"name": "by-user", "version": "1"}
            return {"protocolVersion": params["protocolVersion"], "capabilities": CAPABILITIES, "serverInfo": server}
        case "ping":
            return {}
        case "tools/list":
            return {"tools": [{"name": "work", "inputSchema": {"type": "object"}}]}
        case "tools/call":
            made = now()
            task = {
                "taskId": uuid.uuid4().hex,
                "status": "working",
                "statusMessage": params.get("arguments", {}).get("label", ""),
                "createdAt": made,
                "lastUpdatedAt": made,
                "ttl": None,
            }
            tasks[task["taskId"]] = task
            return {"task": task}
        case "tasks/get" | "tasks/cancel":
            if params["taskId"] not in tasks:
                raise Refused(-32602, "No such task")
            task = tasks[params["taskId"]]
            if method == "tasks/cancel":
                task |= {"status": "cancelled", "lastUpdatedAt": now()}
            return task
        case "tasks/list":
            start = int(params.get("cursor", 0))
            end = start + (page_size or len(tasks))
            page: Json = {"tasks": list(tasks.values())[start:end]}
            return page | ({"nextCursor": str(end)} if end < len(tasks) else {})
    raise Refused(-32601, "Method not found")


async def post(request: Request) -> Response:
    user = request.headers.get("authorization") or request.headers.get("x-api-key")
    if not user:
        return Response(status_code=401, headers={"WWW-Authenticate": 'Bearer realm="by-user"'})
    message = await request.json()
    if "id" not in message:
        return Response(status_code=202)
    reply: Json = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        tasks = tasks_of[request.url.path, user]
        reply["result"] = answer(tasks, message["method"], message.get("params") or {})
    except Refused as refused:
        code, words = refused.args
        reply["error"] = {"code": code, "message": words}
    return JSONResponse(reply)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    app = Starlette(
        routes=[Route("/{path:path}", post, methods=["POST"])], middleware=[Middleware(GZipMiddleware, minimum_size=0)]
    )
    uvicorn.run(app, port=parser.parse_args().port, log_level="warning", timeout_graceful_shutdown=1)


if __name__ == "__main__":
    main()
