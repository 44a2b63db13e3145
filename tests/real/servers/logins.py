"""Servers of every kind that an operator puts behind the gateway without telling either of the other.

    python -m tests.real.servers.logins --port 3001

Each is a Python SDK server with tasks, on a port of its own from `--port` on, in the order of `ALL`:

- `login` is its own authorization server. Beside /mcp, whose challenges say where its metadata is, it has /quiet/mcp,
  whose challenges do not. Everything is compressed for who accepts that;

- `mounted` asks for no login; it stands under a path, so that Starlette redirects /mcp to /mcp/;
- `openid` is its own authorization server, which is found by OpenID discovery alone, and says who it is when it sends
  the user back (RFC 9207);
- `elsewhere` takes tokens of another origin's authorization server, which is `openid`;
- `own-path` keeps its metadata at a path of its own, of which only its challenges tell;
- `localhost` says `localhost` where its address here is 127.0.0.1, and stands under a path as well.
"""

import argparse
import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import uvicorn
from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend, RequireAuthMiddleware
from mcp.server.auth.provider import OAuthAuthorizationServerProvider
from mcp.server.auth.routes import create_auth_routes, create_protected_resource_routes
from mcp.server.auth.settings import ClientRegistrationOptions
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Mount, Route

from tests.real.servers import python_sdk
from tests.real.servers.login import SCOPE

KINDS = ("mounted", "openid", "elsewhere", "own-path", "localhost")
ALL = ("login", *KINDS)
Provider = OAuthAuthorizationServerProvider[Any, Any, Any]
OWN_PATH = "/about/tasks.json"
ENDPOINTS = {"authorization": "authorize", "token": "token", "registration": "register"}


def resource_of(origin: str, authority: str, path: str = "/mcp") -> list[BaseRoute]:
    return list(create_protected_resource_routes(AnyHttpUrl(f"{origin}{path}"), [AnyHttpUrl(authority)], [SCOPE]))


def authority_of(provider: Provider, origin: str) -> list[BaseRoute]:
    registration = ClientRegistrationOptions(enabled=True, valid_scopes=[SCOPE], default_scopes=[SCOPE])
    return list(create_auth_routes(provider, AnyHttpUrl(origin), client_registration_options=registration))


def openid_of(provider: Provider, origin: str) -> list[BaseRoute]:
    async def discovery(_: Request) -> JSONResponse:
        return JSONResponse(
            {
                "issuer": f"{origin}/",
                **{f"{name}_endpoint": f"{origin}/{path}" for name, path in ENDPOINTS.items()},
                "jwks_uri": f"{origin}/jwks",
                "scopes_supported": [SCOPE],
                "response_types_supported": ["code"],
                "grant_types_supported": ["authorization_code", "refresh_token"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["RS256"],
                "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic", "none"],
                "code_challenge_methods_supported": ["S256"],
                "authorization_response_iss_parameter_supported": True,
            }
        )

    kept = [r for r in authority_of(provider, origin) if isinstance(r, Route) and ".well-known" not in r.path]
    return [*kept, Route("/.well-known/openid-configuration", discovery)]


def application(kind: str, port: int, first_port: int) -> Starlette:
    from tests.real.servers.authority import Authority, Named  # tests import this module for its names

    tasks = python_sdk.application(python_sdk.parser().parse_args(["--port", "0", "--json"]))
    [endpoint] = [route.endpoint for route in tasks.routes if isinstance(route, Route) and route.path == "/mcp"]

    def lifespan(_: Starlette) -> AbstractAsyncContextManager[None]:
        return tasks.router.lifespan_context(tasks)  # type: ignore[return-value]  # whose type is wider than its values

    if kind == "mounted":
        return Starlette(routes=[Mount("/mcp", endpoint)], lifespan=lifespan)
    origin = f"http://{'localhost' if kind == 'localhost' else '127.0.0.1'}:{port}"
    provider = (Named if kind == "openid" else Authority)(f"{origin}/")
    authority, metadata = origin, f"{origin}/.well-known/oauth-protected-resource/mcp"
    resource = resource_of(origin, authority)
    if kind == "openid":
        routes = openid_of(provider, origin)
    elif kind == "elsewhere":
        routes, resource = [], resource_of(origin, f"http://127.0.0.1:{first_port + ALL.index('openid')}")
    else:
        routes = authority_of(provider, origin)
    middleware = [Middleware(AuthenticationMiddleware, backend=BearerAuthBackend(provider))]
    if kind == "login":
        quiet = Mount("/quiet", RequireAuthMiddleware(tasks, [SCOPE]))
        routes += [quiet, *resource_of(origin, authority, "/quiet/mcp")]
        middleware.append(Middleware(GZipMiddleware, minimum_size=0))
    if kind == "own-path":
        metadata = f"{origin}{OWN_PATH}"
        resource = [Route(OWN_PATH, route.endpoint) for route in resource if isinstance(route, Route)]
    guarded = RequireAuthMiddleware(endpoint, [SCOPE], AnyHttpUrl(metadata))
    here = Mount("/mcp", guarded) if kind == "localhost" else Route("/mcp", guarded)
    return Starlette(routes=[*routes, *resource, here], middleware=middleware, lifespan=lifespan)


async def serve(first_port: int) -> None:
    servers = []
    for at, kind in reversed(list(enumerate(ALL))):
        app = application(kind, first_port + at, first_port)
        # Node's fetch uses a connection again that the server has just closed for being idle, and does not ask twice.
        config = uvicorn.Config(
            app, port=first_port + at, log_level="warning", timeout_keep_alive=300, timeout_graceful_shutdown=1
        )
        servers.append(uvicorn.Server(config))
    await asyncio.gather(*(server.serve() for server in servers))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    asyncio.run(serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
