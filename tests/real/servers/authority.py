"""The authorization server of tests: FastMCP's, but for its tokens. To import it takes two seconds."""

import base64
import hashlib
import hmac
import json
import time

from fastmcp.server.auth.auth import AccessToken
from fastmcp.server.auth.providers.in_memory import DEFAULT_ACCESS_TOKEN_EXPIRY_SECONDS, InMemoryOAuthProvider
from mcp.server.auth.provider import AuthorizationCode, AuthorizationParams, RefreshToken, construct_redirect_uri
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

from tests.real.servers.login import KEY, token


class Authority(InMemoryOAuthProvider):
    """Gives codes, and tokens for codes, to every client that registers."""

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        return proving(client, await super().exchange_authorization_code(client, authorization_code))

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        return proving(client, await super().exchange_refresh_token(client, refresh_token, scopes))

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


def proving(client: OAuthClientInformationFull, given: OAuthToken) -> OAuthToken:
    assert client.client_id is not None and given.scope is not None
    expires_at = int(time.time()) + DEFAULT_ACCESS_TOKEN_EXPIRY_SECONDS
    return given.model_copy(update={"access_token": token(client.client_id, given.scope.split(), expires_at)})


class Named(Authority):
    """Says who it is where it sends the user back."""

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        return construct_redirect_uri(await super().authorize(client, params), iss=str(self.base_url))
