"""The issuer that says who a person is: its documents, the exchange of a code, and what makes an ID token good.

Source: OpenID Connect Core 1.0 §3.1 (code flow, ID token validation), OpenID Connect Discovery 1.0 §4, RFC 7636 (PKCE),
RFC 7517 (keys), RFC 9207 (the issuer in the answer).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from belay.engine.errors import InputError, bounded
from belay.engine.proxies import proxy_for
from belay.engine.serve.login.rules import LoginRules, safe_address
from belay.engine.serve.login.sessions import Attempt

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
"""Signatures by a key pair alone: no `none`, and no shared secret."""
SECONDS: Final = 10.0
MOST_BYTES: Final = 256 * 1024
KEPT_SECONDS: Final = 3_600.0
"""How long documents of the issuer are kept."""
AGAIN_SECONDS: Final = 30.0
"""Least time between two readings of the keys because a token names one that is not known."""
SKEW: Final = 60.0
"""Seconds by which the clocks may differ."""
_MOST_GROUPS: Final = 512


class LoginFailed(Exception):
    """A person could not be signed in: HTTP ``status``, and why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class IssuerDocument(msgspec.Struct, frozen=True):
    """What the issuer publishes of itself, as far as it is used."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    token_endpoint_auth_methods_supported: list[str] = []


class Person(msgspec.Struct, frozen=True):
    """Who the issuer says signed in."""

    user: str
    groups: tuple[str, ...]


def issuer_session() -> aiohttp.ClientSession:
    """Calls to an issuer: without cookies, and without the passwords of ~/.netrc, which are of other servers."""
    return aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)


class Issuer:
    """One issuer. ``clock`` is monotonic seconds, ``wall`` Unix seconds."""

    def __init__(
        self, rules: LoginRules, http: aiohttp.ClientSession, clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._rules, self._http, self._clock, self._wall = rules, http, clock, wall
        self._document: tuple[float, IssuerDocument] | None = None
        self._keys: tuple[float, KeySet] | None = None

    async def address(self, attempt: Attempt) -> str:
        """Where the browser is sent to sign in. Raises LoginFailed."""
        document = await self._described()
        challenge = base64.urlsafe_b64encode(hashlib.sha256(attempt.verifier.encode("ascii")).digest())
        query = {
            "response_type": "code", "client_id": self._rules.client, "redirect_uri": self._rules.redirect,
            "scope": "openid profile email", "state": attempt.state, "nonce": attempt.nonce,
            "code_challenge": challenge.rstrip(b"=").decode("ascii"), "code_challenge_method": "S256",
        }  # fmt: skip
        joint = "&" if "?" in document.authorization_endpoint else "?"
        return f"{document.authorization_endpoint}{joint}{urlencode(query)}"

    async def person(self, code: str, attempt: Attempt) -> Person:
        """Who a code stands for. Raises LoginFailed."""
        document = await self._described()
        form = {
            "grant_type": "authorization_code", "code": code, "redirect_uri": self._rules.redirect,
            "client_id": self._rules.client, "code_verifier": attempt.verifier,
        }  # fmt: skip
        headers = {"Accept": "application/json"}
        if self._rules.secret:
            methods = document.token_endpoint_auth_methods_supported
            if "client_secret_basic" in methods or "client_secret_post" not in methods:
                # RFC 6749 §2.3.1: both parts are form-encoded before they are joined
                pair = f"{quote(self._rules.client, safe='')}:{quote(self._rules.secret, safe='')}"
                headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
            else:
                form["client_secret"] = self._rules.secret
        answer = await self._ask("POST", document.token_endpoint, data=form, headers=headers)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise LoginFailed(502, "the issuer sent no ID token")
        return self._read(await self._claims(token, document), attempt)

    async def _claims(self, token: str, document: IssuerDocument) -> Mapping[str, Any]:
        """The claims of a token whose signature is good. A key that is not known yet is looked for once."""
        for fresh in (False, True):
            try:
                claims: Mapping[str, Any] = jwt.decode(token, await self._key_set(document, fresh), ALGORITHMS).claims
                return claims
            except (JoseError, ValueError, TypeError, RecursionError) as error:
                refused = error
        raise LoginFailed(403, "the ID token has no good signature") from refused

    def _read(self, claims: Mapping[str, Any], attempt: Attempt) -> Person:
        """The person in claims; raises LoginFailed for a token that is not for this sign-in, here and now."""
        client, now = self._rules.client, self._wall()
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        nonce = claims.get("nonce")
        for is_good, what in (
            (claims.get("iss") == self._rules.issuer, "is of another issuer"),
            (client in audiences, "is for another client"),
            (claims.get("azp", client) == client, "was asked for by another client"),
            (_number(claims.get("exp")) > now - SKEW, "has expired"),
            (_number(claims.get("iat"), float("nan")) <= now + SKEW, "is from the future"),
            (_number(claims.get("nbf"), 0.0) <= now + SKEW, "is not good yet"),
            (isinstance(nonce, str) and hmac.compare_digest(nonce.encode(), attempt.nonce.encode()),
             "is of another sign-in"),
        ):  # fmt: skip
            if not is_good:
                raise LoginFailed(403, f"the ID token {what}")
        return Person(self._name(claims), _groups(claims.get(self._rules.groups_claim)))

    def _name(self, claims: Mapping[str, Any]) -> str:
        claim = self._rules.user_claim
        user = claims.get(claim)
        if not isinstance(user, str) or not user.strip():
            raise LoginFailed(403, f"the ID token says no {claim}")
        if claim == "email" and claims.get("email_verified") is False:
            raise LoginFailed(403, "the issuer has not verified the e-mail address")
        return bounded(user.strip(), 256)

    async def _described(self) -> IssuerDocument:
        if self._document is not None and self._clock() - self._document[0] < KEPT_SECONDS:
            return self._document[1]
        address = f"{self._rules.issuer.rstrip('/')}/.well-known/openid-configuration"
        try:
            found = msgspec.convert(await self._ask("GET", address), IssuerDocument)
            for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                safe_address(getattr(found, name).partition("?")[0], name)
        except (msgspec.ValidationError, InputError) as error:
            raise LoginFailed(502, f"the issuer's document is not as published: {bounded(str(error), 200)}") from error
        if found.issuer != self._rules.issuer:
            raise LoginFailed(502, f"the issuer calls itself {bounded(found.issuer, 200)!r}")
        self._document = (self._clock(), found)
        return found

    async def _key_set(self, document: IssuerDocument, fresh: bool) -> KeySet:
        if self._keys is not None:
            age = self._clock() - self._keys[0]
            if age < (AGAIN_SECONDS if fresh else KEPT_SECONDS):
                return self._keys[1]
        found: Any = await self._ask("GET", document.jwks_uri)
        try:
            keys = KeySet.import_key_set(found)
        except (JoseError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise LoginFailed(502, "the issuer's keys cannot be read") from error
        self._keys = (self._clock(), keys)
        return keys

    async def _ask(self, method: str, address: str, **more: Any) -> dict[str, Any]:
        """A JSON object of the issuer, bounded in time and size. Raises LoginFailed."""
        try:
            timeout = aiohttp.ClientTimeout(total=SECONDS)
            asked = self._http.request(
                method, address, timeout=timeout, allow_redirects=False, proxy=proxy_for(address), **more
            )
            async with asked as answer:
                body = await answer.content.read(MOST_BYTES + 1)
                while len(body) <= MOST_BYTES and not answer.content.at_eof():
                    body += await answer.content.read(MOST_BYTES + 1)
                status = answer.status
        except InputError as error:  # the environment names a proxy that cannot be used
            raise LoginFailed(503, str(error)) from error
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise LoginFailed(503, f"the issuer does not answer: {type(error).__name__}") from error
        try:
            found = msgspec.json.decode(body) if len(body) <= MOST_BYTES else None
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            found = None
        if status != 200 or not isinstance(found, dict):
            said = found.get("error") if isinstance(found, dict) else None
            raise LoginFailed(
                403 if said else 502, f"the issuer answered {status} {bounded(str(said or ''), 80)}".strip()
            )
        return found


def _number(value: object, missing: float = float("-inf")) -> float:
    """A time among claims; one that is missing, or is none, counts as ``missing``."""
    if value is None:
        return missing
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else float("nan")


def _groups(value: object) -> tuple[str, ...]:
    listed = value if isinstance(value, list) else [value]
    return tuple(bounded(one, 256) for one in listed[:_MOST_GROUPS] if isinstance(one, str))
