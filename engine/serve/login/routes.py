"""The paths of sign-in: to the issuer, back from it, and out again."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Final

import aiohttp
from aiohttp import web

from belay.engine.log import get
from belay.engine.serve.login.issuer import Issuer, LoginFailed
from belay.engine.serve.login.refusals import refusal
from belay.engine.serve.login.rules import LoginRules
from belay.engine.serve.login.sessions import ATTEMPT_SECONDS, SESSION_SECONDS, Attempt, SealedCookies, WebSession
from belay.engine.serve.webhook import Limiter

SESSION_COOKIE: Final = "__Host-belay-session"
ATTEMPT_COOKIE: Final = "__Host-belay-login"
"""Names with which browsers keep cookies of this host and TLS only, for every path."""
_MOST_PLACE: Final = 1_500
_MOST_CODE: Final = 4_000
_log = get("login")


class Login:
    """Signs people in and out, and reads whose session a request carries. ``clock`` is monotonic seconds."""

    def __init__(
        self, rules: LoginRules, cookies: SealedCookies, http: aiohttp.ClientSession,
        clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._rules, self._cookies = rules, cookies
        self._issuer = Issuer(rules, http, clock, wall)
        self._limiter = Limiter(clock)

    def add_to(self, app: web.Application) -> None:
        """Add the routes to the application."""
        app.router.add_get("/login", self.begin)
        app.router.add_get("/login/callback", self.end)
        app.router.add_post("/logout", self.leave)

    def session(self, headers: Mapping[str, str]) -> WebSession | None:
        """Whose session a request carries."""
        return self._cookies.opened(cookie(headers, SESSION_COOKIE), WebSession, SESSION_SECONDS)

    def is_own(self, headers: Mapping[str, str]) -> bool:
        """Whether a page of this server sends a request, and not a page elsewhere that uses the person's cookie."""
        return headers.get("Origin", "") == self._rules.origin

    async def begin(self, request: web.Request) -> web.Response:
        """Send the browser to the issuer."""
        if self._limiter.wait(request.remote or "") > 0:
            response = self._answer(request, 429, "too many sign-ins", "Try again in a moment.")
            response.headers["Retry-After"] = "2"
            return response
        to = request.query.get("to", "")
        attempt = Attempt(
            state=secrets.token_urlsafe(32), nonce=secrets.token_urlsafe(32), verifier=secrets.token_urlsafe(48),
            to=to if to.startswith("#/") and len(to) <= _MOST_PLACE and to.isprintable() else "",
        )  # fmt: skip
        try:
            address = await self._issuer.address(attempt)
        except LoginFailed as failed:
            return self._refused(request, failed, attempt)
        response = web.Response(status=302, headers={"Location": address, "Cache-Control": "no-store"})
        _keep(response, ATTEMPT_COOKIE, self._cookies.sealed(attempt), ATTEMPT_SECONDS)
        return response

    async def end(self, request: web.Request) -> web.Response:
        """Take the issuer's answer; a person who may look gets a session."""
        query = request.query
        attempt = self._cookies.opened(cookie(request.headers, ATTEMPT_COOKIE), Attempt, ATTEMPT_SECONDS)
        code, state = query.get("code", ""), query.get("state", "")
        try:
            if attempt is None or not hmac.compare_digest(state.encode(), attempt.state.encode()):
                raise LoginFailed(403, "this sign-in was not begun here, or too long ago")
            if query.get("iss", self._rules.issuer) != self._rules.issuer:
                raise LoginFailed(403, "the answer is of another issuer")
            if not code or len(code) > _MOST_CODE:
                raise LoginFailed(403, "the issuer did not sign you in")
            person = await self._issuer.person(code, attempt)
            role = self._rules.role_of(person.user, person.groups)
            if role is None:
                raise LoginFailed(403, f"{person.user} may not look: no group of BELAY_OIDC_VIEWERS")
        except LoginFailed as failed:
            return self._refused(request, failed, attempt)
        _log.info("signed in", user=person.user, role=role)
        place = f"{self._rules.site}/console/{attempt.to}"
        response = web.Response(status=302, headers={"Location": place, "Cache-Control": "no-store"})
        _keep(response, SESSION_COOKIE, self._cookies.sealed(WebSession(person.user, role)), SESSION_SECONDS)
        _keep(response, ATTEMPT_COOKIE, "", 0)
        return response

    async def leave(self, request: web.Request) -> web.Response:
        """Sign out: the browser forgets the session."""
        if not self.is_own(request.headers):
            return self._answer(request, 403, "the request comes from another page")
        response = web.Response(status=204)
        _keep(response, SESSION_COOKIE, "", 0)
        return response

    def _refused(self, request: web.Request, failed: LoginFailed, attempt: Attempt | None) -> web.Response:
        _log.warning("not signed in", reason=failed.text)
        hint = "Try again, or ask the operator of this server."
        response = self._answer(request, failed.status, failed.text, hint, attempt.to if attempt is not None else "")
        _keep(response, ATTEMPT_COOKIE, "", 0)
        return response

    def _answer(self, request: web.Request, status: int, text: str, hint: str = "", to: str = "") -> web.Response:
        return refusal(request, status, text, hint, site=self._rules.site, to=to)


def cookie(headers: Mapping[str, str], name: str) -> str:
    """The value of a cookie in a request, "" where there is none."""
    try:
        found = SimpleCookie(headers.get("Cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def _keep(response: web.Response, name: str, value: str, seconds: int) -> None:
    # Lax: the browser comes back from the issuer by a link, and must then bring the cookie
    response.set_cookie(name, value, max_age=seconds, path="/", secure=True, httponly=True, samesite="Lax")
