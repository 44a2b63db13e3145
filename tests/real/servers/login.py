"""The authorization server of tests: who asks for a login gets it. A token is its own proof: `token` makes one."""

import base64
import hashlib
import hmac
import json
import secrets
import time

from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

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
