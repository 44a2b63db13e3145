"""The tokens of the tests' authorization server: one is its own proof."""

import base64
import hashlib
import hmac
import json
import secrets

KEY = b"of the tests"
SCOPE = "tasks"


def token(client_id: str, scopes: list[str], expires_at: int) -> str:
    claims = json.dumps([client_id, scopes, expires_at, secrets.token_hex(4)]).encode()
    return f"{base64.urlsafe_b64encode(claims).decode()}.{hmac.digest(KEY, claims, hashlib.sha256).hex()}"
