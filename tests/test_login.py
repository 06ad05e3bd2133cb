"""Sign-in by OpenID Connect: who may look as what, which tokens are refused, and how sessions are kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer
from joserfc.jwk import ECKey, OctKey

from belay.engine.errors import InputError
from belay.engine.serve.console.changes import ChangeStream
from belay.engine.serve.console.routes import Console
from belay.engine.serve.console.viewers import AccessRules, Viewers
from belay.engine.serve.engine_client import EngineClient
from belay.engine.serve.http import HttpServer
from belay.engine.serve.login.issuer import issuer_session
from belay.engine.serve.login.routes import ATTEMPT_COOKIE, SESSION_COOKIE, Login
from belay.engine.serve.login.rules import LoginRules, Role, login_rules
from belay.engine.serve.login.sessions import SESSION_SECONDS, Attempt, SealedCookies, WebSession, session_keys
from belay.engine.settings import Settings
from tests.oidc_issuer import CLIENT, NOW, SECRET, OidcIssuer, rsa_key

SITE = "https://belay.example"
Body = Callable[["SignIn"], Awaitable[None]]


class SignIn:
    """A server that people sign in to, an issuer, and a browser that keeps no cookie of its own accord."""

    def __init__(self, issuer: OidcIssuer, browser: TestClient[Any, Any], now: list[float]) -> None:
        self.issuer, self.browser, self.now = issuer, browser, now

    async def get(self, path: str, cookies: dict[str, str] | None = None, **more: Any) -> aiohttp.ClientResponse:
        return await self._ask("GET", path, cookies, more)

    async def post(self, path: str, cookies: dict[str, str] | None = None, **more: Any) -> aiohttp.ClientResponse:
        return await self._ask("POST", path, cookies, more)

    async def _ask(self, method: str, path: str, cookies: Any, more: dict[str, Any]) -> aiohttp.ClientResponse:
        headers = more.pop("headers", {})
        if cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
        return await self.browser.request(method, path, headers=headers, allow_redirects=False, **more)

    async def arrive(self, to: str = "") -> tuple[str, dict[str, str]]:
        """What the issuer sends a browser back with, and the cookie of the attempt."""
        begun = await self.get("/login" + (f"?to={to}" if to else ""))
        assert begun.status == 302
        return self.issuer.authorize(begun.headers["Location"]), {ATTEMPT_COOKIE: begun.cookies[ATTEMPT_COOKIE].value}

    async def come_back(self, answer: str, cookies: dict[str, str]) -> aiohttp.ClientResponse:
        return await self.get(f"/login/callback?{answer}", cookies)

    async def session(self) -> dict[str, str]:
        """The cookie of a person who signed in."""
        ended = await self.come_back(*await self.arrive())
        assert ended.status == 302, await ended.text()
        return {SESSION_COOKIE: ended.cookies[SESSION_COOKIE].value}

    async def refusal(self) -> str:
        """Why a person is not signed in."""
        ended = await self.come_back(*await self.arrive())
        assert ended.status in (403, 502, 503) and SESSION_COOKIE not in ended.cookies
        return str((await ended.json())["error"])


@asynccontextmanager
async def _signing_in(**rules: Any) -> AsyncIterator[SignIn]:
    now = [NOW]
    async with OidcIssuer() as issuer, issuer_session() as http:
        given = {"viewers": frozenset({"npu-users"}), "changers": frozenset({"npu-operators"}), **rules}
        own = LoginRules(site=SITE, issuer=issuer.address, client=CLIENT, secret=SECRET, **given)
        login = Login(own, SealedCookies(wall=lambda: now[0]), http, clock=lambda: now[0], wall=lambda: now[0])
        console = Console(
            ChangeStream(), Viewers(AccessRules(free=False), None, session=login.session), login=login
        )  # fmt: skip
        server = HttpServer(Mock(spec=EngineClient), shard="main", console=console)
        async with TestClient(TestServer(server.application()), cookie_jar=aiohttp.DummyCookieJar()) as browser:
            yield SignIn(issuer, browser, now)


def signing_in(body: Body, **rules: Any) -> None:
    async def run() -> None:
        async with _signing_in(**rules) as world:
            await body(world)

    asyncio.run(run())


def test_a_person_of_the_group_looks_and_comes_back_where_the_link_led() -> None:
    async def body(world: SignIn) -> None:
        refused = await world.get("/api/v1/viewer")
        assert (refused.status, (await refused.json())["login"]) == (401, True)
        ended = await world.come_back(*await world.arrive("%23/time%3Fat=2026-11-29T10:00:00Z"))
        assert ended.headers["Location"] == f"{SITE}/console/#/time?at=2026-11-29T10:00:00Z"
        kept = ended.cookies[SESSION_COOKIE]
        assert kept["secure"] and kept["httponly"] and kept["samesite"] == "Lax" and kept["path"] == "/"
        assert not kept["domain"] and "ann@example.org" not in kept.value
        viewer = await (await world.get("/api/v1/viewer", {SESSION_COOKIE: kept.value})).json()
        assert (viewer["user"], viewer["role"], viewer["can"]["whatIf"]) == ("ann@example.org", "viewer", False)

    signing_in(body)


def test_passwords_of_a_netrc_do_not_reach_the_issuer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".netrc").write_text("default login ada password of-another-server\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NETRC", raising=False)
    for name in ("http_proxy", "no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)

    async def body(world: SignIn) -> None:
        assert await world.session() and world.issuer.asked == ["configuration", "keys"]
        assert world.issuer.proofs == ["", ""]

    signing_in(body)

    async def without_proxy(world: SignIn) -> None:
        monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1")
        refused = await world.get("/login")
        assert refused.status == 503 and "a proxy of 'socks5' cannot be used" in await refused.text()

    signing_in(without_proxy)


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"iss": "https://evil.example"}, "is of another issuer"),
        ({"aud": "other"}, "is for another client"),
        ({"aud": ["other", "third"]}, "is for another client"),
        ({"aud": [CLIENT, "other"], "azp": "other"}, "was asked for by another client"),
        ({"nonce": "of-yesterday"}, "is of another sign-in"),
        ({"nonce": None}, "is of another sign-in"),
        ({"exp": NOW - 120}, "has expired"),
        ({"exp": None}, "has expired"),
        ({"exp": "9999999999"}, "has expired"),
        ({"iat": NOW + 600}, "is from the future"),
        ({"nbf": NOW + 600}, "is not good yet"),
        ({"email": None}, "says no email"),
        ({"email_verified": False}, "has not verified the e-mail address"),
        ({"groups": ["visitors"]}, "may not look"),
        ({"groups": None}, "may not look"),
    ],
)
def test_a_token_that_is_not_for_this_sign_in_is_refused(claims: dict[str, Any], said: str) -> None:
    async def body(world: SignIn) -> None:
        world.issuer.claims = claims
        assert said in await world.refusal()

    signing_in(body)


def test_a_token_that_the_issuer_did_not_sign_is_refused() -> None:
    async def body(world: SignIn) -> None:
        issuer = world.issuer
        good = issuer.key
        issuer.key = ECKey.generate_key("P-256", {"kid": "one"})
        assert await world.refusal() == "the ID token has no good signature"
        # a shared secret proves nothing, least of all the published key as one
        issuer.key, issuer.algorithm = OctKey.import_key("k" * 32, {"kid": "one"}), "HS256"
        assert await world.refusal() == "the ID token has no good signature"
        issuer.key, issuer.algorithm = good, "ES256"
        assert await world.session()

    signing_in(body)


def test_new_keys_of_the_issuer_are_found_and_asked_for_once() -> None:
    async def body(world: SignIn) -> None:
        issuer = world.issuer
        await world.session()
        issuer.key, issuer.algorithm = rsa_key(), "RS256"
        issuer.published = [issuer.key]
        world.now[0] += 60
        issuer.claims = {"exp": NOW + 900, "iat": NOW + 60}
        await world.session()
        assert issuer.asked == ["configuration", "keys", "keys"]

    signing_in(body)


def test_an_answer_counts_for_the_browser_that_began() -> None:
    async def body(world: SignIn) -> None:
        answer, cookies = await world.arrive()
        other = (await world.arrive())[1]
        for wrong in ({}, other, {ATTEMPT_COOKIE: "forged"}):
            assert (await world.come_back(answer, wrong)).status == 403
        assert (await world.come_back(answer.replace("state=", "state=x"), cookies)).status == 403
        assert (await world.come_back("error=access_denied&" + answer.replace("code=", "c="), cookies)).status == 403
        world.now[0] += 601
        assert (await world.come_back(answer, cookies)).status == 403

    signing_in(body)


def test_a_code_is_good_once_and_with_its_verifier() -> None:
    async def body(world: SignIn) -> None:
        answer, cookies = await world.arrive()
        assert (await world.come_back(answer, cookies)).status == 302
        again = await world.come_back(answer, cookies)
        assert (again.status, (await again.json())["error"]) == (403, "the issuer answered 400 invalid_grant")

    signing_in(body)


def test_an_issuer_that_is_not_as_published_signs_no_one_in() -> None:
    async def body(world: SignIn) -> None:
        world.issuer.document = {"issuer": "https://evil.example"}
        begun = await world.get("/login")
        assert begun.status == 502 and "calls itself" in (await begun.json())["error"]
        world.issuer.document = {"token_endpoint": "http://elsewhere.example/token"}
        assert (await world.get("/login")).status == 502

    signing_in(body)


def test_a_session_ends_and_cannot_be_forged() -> None:
    async def body(world: SignIn) -> None:
        session = await world.session()
        assert (await world.get("/api/v1/viewer", session)).status == 200
        forged = {SESSION_COOKIE: SealedCookies(wall=lambda: NOW).sealed(WebSession("eve", Role.CHANGES))}
        assert (await world.get("/api/v1/viewer", forged)).status == 401
        # an attempt is sealed by the same key, and is no session
        begun = (await world.arrive())[1]
        assert (await world.get("/api/v1/viewer", {SESSION_COOKIE: begun[ATTEMPT_COOKIE]})).status == 401
        world.now[0] += SESSION_SECONDS + 1
        assert (await world.get("/api/v1/viewer", session)).status == 401

    signing_in(body)


def test_what_is_more_than_looking_needs_the_role_and_the_servers_own_page() -> None:
    async def body(world: SignIn) -> None:
        viewer = await world.session()
        own: dict[str, Any] = {"headers": {"Origin": SITE}, "json": {"changes": []}}
        refused = await world.post("/api/v1/what-if", viewer, **own)
        assert (refused.status, (await refused.json())["error"]) == (403, "your role is viewer")
        world.issuer.claims = {"groups": ["npu-operators"]}
        operator = await world.session()
        for origin in ("https://evil.example", "null", "", "https://belay.example.evil.example"):
            elsewhere = await world.post("/api/v1/what-if", operator, headers={"Origin": origin}, json={"changes": []})
            assert (elsewhere.status, (await elsewhere.json())["error"]) == (403, "the request comes from another page")
            assert (await world.post("/logout", operator, headers={"Origin": origin})).status == 403
        # this console answers no what-if: it is not refused, there is none
        assert (await world.post("/api/v1/what-if", operator, headers={"Origin": SITE}, json={})).status in (404, 405)
        left = await world.post("/logout", operator, headers={"Origin": SITE})
        assert left.status == 204 and left.cookies[SESSION_COOKIE]["max-age"] == "0"

    signing_in(body)


def test_a_place_that_is_no_view_is_not_followed() -> None:
    async def body(world: SignIn) -> None:
        for to in ("//evil.example", "https://evil.example", "%23evil", "%23/" + "x" * 2000):
            ended = await world.come_back(*await world.arrive(to))
            assert ended.headers["Location"] == f"{SITE}/console/"

    signing_in(body)


def test_keys_are_changed_without_signing_anyone_out(tmp_path: Path) -> None:
    old, new = b"b" * 43 + b"=", b"c" * 43 + b"="
    session = WebSession("ann", Role.VIEWER)
    sealed = SealedCookies([old]).sealed(session)
    file = tmp_path / "keys"
    file.write_bytes(new + b"\n" + old + b"\n")
    assert SealedCookies(session_keys(str(file))).opened(sealed, WebSession, 60) == session
    assert SealedCookies([new]).opened(sealed, WebSession, 60) is None
    assert SealedCookies([old]).opened(sealed, Attempt, 60) is None
    for text in ("", "short\n", "k" * 44):
        file.write_text(text)
        with pytest.raises(InputError, match="BELAY_SESSION_KEY_FILE"):
            session_keys(str(file))


GOOD = {"oidc_issuer": "https://login.example", "oidc_client": "belay", "console_url": SITE, "oidc_viewers": "*"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"oidc_client": ""}, "BELAY_OIDC_CLIENT"),
        ({"console_url": ""}, "BELAY_CONSOLE_URL"),
        ({"console_url": "http://belay.example"}, "BELAY_CONSOLE_URL"),
        ({"oidc_issuer": "http://login.example"}, "BELAY_OIDC_ISSUER"),
        ({"oidc_issuer": "https://user:word@login.example"}, "BELAY_OIDC_ISSUER"),
        ({"oidc_viewers": " , "}, "BELAY_OIDC_VIEWERS"),
        ({"oidc_secret_file": "/nowhere"}, "BELAY_OIDC_SECRET_FILE"),
    ],
)
def test_settings_that_would_not_be_safe_are_refused(change: dict[str, str], said: str) -> None:
    assert login_rules(Settings()) is None
    assert login_rules(Settings(**GOOD)) is not None
    with pytest.raises(InputError, match=said):
        login_rules(Settings(**{**GOOD, **change}))


def test_roles_come_from_groups_and_names() -> None:
    rules = login_rules(Settings(**{**GOOD, "oidc_viewers": "dev, user:bo@example.org", "oidc_changers": "ops"}))
    assert rules is not None
    assert rules.role_of("ann@example.org", ["ops", "dev"]) is Role.CHANGES
    assert rules.role_of("bo@example.org", []) is Role.VIEWER
    assert rules.role_of("eve@example.org", ["*"]) is None
    # a name is no group, and a group no person
    assert rules.role_of("ops", []) is None
    assert rules.role_of("eve@example.org", ["user:bo@example.org"]) is None
