"""A server that asks for a login, and the authorization server that gives it: the Python SDK's own parts of both.

    python -m tests.real.servers.login --port 3001

The tasks are those of python_sdk, with JSON. /mcp is a resource whose challenges say where its metadata is,
/quiet/mcp one whose challenges do not. Every address that it tells is its own. Who asks for a login gets it. Everything
is compressed for who accepts that. A token is its own proof: `token` makes one.
"""

import argparse
import base64
import hashlib
import hmac
import json
import secrets
import time
from contextlib import AbstractAsyncContextManager

import uvicorn
from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend, RequireAuthMiddleware
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    ProviderTokenVerifier,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.routes import build_resource_metadata_url, create_auth_routes, create_protected_resource_routes
from mcp.server.auth.settings import ClientRegistrationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import BaseRoute, Mount, Route

from tests.real.servers import python_sdk

KEY = b"of the tests"
LIFETIME_SECONDS = 3600
SCOPE = "tasks"


def token(client_id: str, scopes: list[str], expires_at: int) -> str:
    claims = json.dumps([client_id, scopes, expires_at, secrets.token_hex(4)]).encode()
    return f"{base64.urlsafe_b64encode(claims).decode()}.{hmac.digest(KEY, claims, hashlib.sha256).hex()}"


class Authority(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """Gives codes, and tokens for codes, to every client that registers."""

    def __init__(self) -> None:
        self._clients: dict[str, OAuthClientInformationFull] = {}
        self._codes: dict[str, AuthorizationCode] = {}
        self._refresh: dict[str, RefreshToken] = {}

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self._clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        assert client_info.client_id is not None
        self._clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        assert client.client_id is not None
        code = secrets.token_hex(20)
        self._codes[code] = AuthorizationCode(
            code=code,
            client_id=client.client_id,
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self._codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self._codes[authorization_code.code]
        return self._tokens(client, authorization_code.scopes)

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        return self._refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        del self._refresh[refresh_token.token]
        return self._tokens(client, scopes)

    async def load_access_token(self, token: str) -> AccessToken | None:
        payload, _, proof = token.partition(".")
        try:
            claims = base64.urlsafe_b64decode(payload)
        except ValueError:
            return None
        if not hmac.compare_digest(proof, hmac.digest(KEY, claims, hashlib.sha256).hex()):
            return None
        client_id, scopes, expires_at, _ = json.loads(claims)
        return AccessToken(token=token, client_id=client_id, scopes=scopes, expires_at=expires_at)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        raise NotImplementedError

    def _tokens(self, client: OAuthClientInformationFull, scopes: list[str]) -> OAuthToken:
        assert client.client_id is not None
        again = RefreshToken(token=secrets.token_hex(20), client_id=client.client_id, scopes=scopes)
        self._refresh[again.token] = again
        return OAuthToken(
            access_token=token(client.client_id, scopes, int(time.time()) + LIFETIME_SECONDS),
            refresh_token=again.token,
            expires_in=LIFETIME_SECONDS,
            scope=" ".join(scopes),
        )


def application(origin: str) -> Starlette:
    tasks = python_sdk.application(python_sdk.parser().parse_args(["--port", "0", "--json"]))
    provider = Authority()
    resources = {path: AnyHttpUrl(f"{origin}{path}") for path in ("/mcp", "/quiet/mcp")}
    loud = RequireAuthMiddleware(tasks, [SCOPE], build_resource_metadata_url(resources["/mcp"]))
    routes: list[BaseRoute] = [
        Route("/mcp", python_sdk.Endpoint(loud)),
        Mount("/quiet", RequireAuthMiddleware(tasks, [SCOPE])),
    ]
    for path, resource in resources.items():
        routes += create_protected_resource_routes(
            resource, [AnyHttpUrl(origin)], [SCOPE], f"The tasks at {path}", AnyHttpUrl(f"{origin}/documentation")
        )
    registration = ClientRegistrationOptions(enabled=True, valid_scopes=[SCOPE], default_scopes=[SCOPE])
    routes += create_auth_routes(provider, AnyHttpUrl(origin), client_registration_options=registration)

    def lifespan(_: Starlette) -> AbstractAsyncContextManager[None]:
        return tasks.router.lifespan_context(tasks)  # type: ignore[return-value]  # whose type is wider than its values

    backend = BearerAuthBackend(ProviderTokenVerifier(provider))
    middleware = [Middleware(AuthenticationMiddleware, backend=backend), Middleware(GZipMiddleware, minimum_size=0)]
    return Starlette(routes=routes, middleware=middleware, lifespan=lifespan)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    app = application(f"http://127.0.0.1:{options.port}")
    uvicorn.run(app, port=options.port, log_level="warning", timeout_graceful_shutdown=1)


if __name__ == "__main__":
    main()
