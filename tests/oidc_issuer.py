"""An OpenID Connect issuer for tests: discovery, keys, authorization by code with PKCE, and tokens, as published.

Source: OpenID Connect Core 1.0 §3.1, OpenID Connect Discovery 1.0 §4.2, RFC 7636 §4.6.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from aiohttp import web
from aiohttp.test_utils import TestServer
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey

CLIENT, SECRET = "belay", "s3cret/with:odd+signs"
NOW = 1_800_000_000.0


class OidcIssuer:
    """The issuer; ``claims`` are laid over those of a good token, ``key`` signs, ``published`` are the keys that it
    shows."""

    def __init__(self) -> None:
        self.key: Any = ECKey.generate_key("P-256", {"kid": "one", "use": "sig"})
        self.published = [self.key]
        self.algorithm = "ES256"
        self.claims: dict[str, Any] = {}
        self.document: dict[str, Any] = {}
        self.answer: dict[str, str] = {}
        """Laid over what a person's browser is sent back with."""
        self.asked: list[str] = []
        self.proofs: list[str] = []
        """What the configuration and the keys, which are public, were asked with."""
        self._codes: dict[str, dict[str, str]] = {}
        self._server: TestServer | None = None

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.port}"

    async def __aenter__(self) -> OidcIssuer:
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self._configuration)
        app.router.add_get("/keys", self._keys)
        app.router.add_get("/authorize", self._authorize)
        app.router.add_post("/token", self._token)
        self._server = TestServer(app, host="127.0.0.1")
        await self._server.start_server()
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        await self._server.close()

    def authorize(self, address: str) -> str:
        """What a person's browser is sent back with, after signing in at the address that the server gave it."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        assert address.startswith(f"{self.address}/authorize?")
        assert query["response_type"] == "code" and "openid" in query["scope"].split()
        assert query["code_challenge_method"] == "S256" and query["client_id"] == CLIENT
        code = f"code-{len(self._codes)}"
        self._codes[code] = query
        return urlencode({"code": code, "state": query["state"], "iss": self.address} | self.answer)

    async def _authorize(self, request: web.Request) -> web.Response:
        """The page on which a person signs in."""
        back = f"{request.query['redirect_uri']}?{self.authorize(f'{self.address}{request.rel_url}')}"
        return web.Response(text=f'<a href="{escape(back)}">Go on as Ann</a>', content_type="text/html")

    async def _configuration(self, request: web.Request) -> web.Response:
        self.asked.append("configuration")
        self.proofs.append(request.headers.get("Authorization", ""))
        found = {
            "issuer": self.address,
            "authorization_endpoint": f"{self.address}/authorize",
            "token_endpoint": f"{self.address}/token",
            "jwks_uri": f"{self.address}/keys",
            "response_types_supported": ["code"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic"],
        }
        return web.json_response(found | self.document)

    async def _keys(self, request: web.Request) -> web.Response:
        self.asked.append("keys")
        self.proofs.append(request.headers.get("Authorization", ""))
        return web.json_response(KeySet(self.published).as_dict(private=False))

    async def _token(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        scheme, _, pair = request.headers.get("Authorization", "").partition(" ")
        name, _, secret = base64.b64decode(pair or "").decode().partition(":")
        if scheme != "Basic" or (unquote(name), unquote(secret)) != (CLIENT, SECRET):
            return web.json_response({"error": "invalid_client"}, status=401)
        begun = self._codes.pop(form.get("code", ""), None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=")
        if (
            begun is None
            or begun["redirect_uri"] != form["redirect_uri"]
            or begun["code_challenge"] != challenge.decode()
        ):
            return web.json_response({"error": "invalid_grant"}, status=400)
        claims = {
            "iss": self.address, "aud": CLIENT, "sub": "4711", "exp": NOW + 300, "iat": NOW, "nonce": begun["nonce"],
            "email": "ann@example.org", "email_verified": True, "groups": ["npu-users"],
        }  # fmt: skip
        signed = {name: value for name, value in (claims | self.claims).items() if value is not None}
        token = jwt.encode({"alg": self.algorithm, "kid": self.key.kid}, signed, self.key, algorithms=[self.algorithm])
        return web.json_response({"access_token": "x", "token_type": "Bearer", "id_token": token})


def rsa_key() -> Any:
    """A key of the kind that most issuers sign with."""
    return RSAKey.generate_key(2048, {"kid": "rsa", "use": "sig"})
