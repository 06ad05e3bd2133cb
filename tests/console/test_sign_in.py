"""Signing in by OpenID Connect in a real browser: there and back, the role, out again, and why it was refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import aiohttp
import pytest

from belay.engine.serve.login.routes import Login
from belay.engine.serve.login.rules import LoginRules
from belay.engine.serve.login.sessions import SealedCookies
from tests.console import sample
from tests.console.browser import Problems, context_of
from tests.console.site import Site
from tests.console.test_views import violations
from tests.oidc_issuer import CLIENT, NOW, SECRET, OidcIssuer
from tests.ports import free_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("console")]


class SignInSite(Site):
    """A site that is seen only after a sign-in at ``issuer``, which lives in the same loop."""

    def __init__(self) -> None:
        super().__init__(sample.document(), free=False)
        self.port, self.issuer, self.login = free_port(), OidcIssuer(), self._sign_in
        self._http: aiohttp.ClientSession | None = None

    async def _sign_in(self) -> Login:
        await self.issuer.__aenter__()
        self._http = aiohttp.ClientSession()
        rules = LoginRules(
            site=self.address, issuer=self.issuer.address, client=CLIENT, secret=SECRET,
            viewers=frozenset({"npu-users"}), changers=frozenset({"npu-operators"}),
        )  # fmt: skip
        return Login(rules, SealedCookies(wall=lambda: NOW), self._http, clock=lambda: NOW, wall=lambda: NOW)

    async def end_sign_in(self) -> None:
        """Close the issuer and the connections to it."""
        if self._http is not None:
            await self._http.close()
            await self.issuer.__aexit__()


@pytest.fixture(scope="module")
def world(browser: Browser) -> Iterator[SignInSite]:
    """The browser comes first: without one nothing is started."""
    with SignInSite() as found:
        yield found
        found.on_loop(found.end_sign_in())


@pytest.fixture
def page(browser: Browser, world: SignInSite) -> Iterator[Page]:
    world.issuer.claims, world.issuer.answer = {}, {}
    context = context_of(browser)
    problems = Problems(context, world.address, world.issuer.address)
    problems.expected = "Failed to load resource"  # nothing is shown before the sign-in
    yield context.new_page()
    context.close()
    assert problems.found == []


def begin(page: Page, world: SignInSite, place: str = "/queue") -> None:
    """Open the console without a session, and follow the link to the issuer."""
    page.goto(f"{world.address}/console/#{place}")
    page.get_by_role("heading", name="Not signed in").wait_for()
    page.get_by_role("link", name="Sign in").click()
    page.get_by_role("link", name="Go on as Ann").wait_for()


@pytest.mark.parametrize(("group", "role"), [("npu-users", "viewer"), ("npu-operators", "changes")])
def test_a_person_signs_in_sees_the_role_and_signs_out(page: Page, world: SignInSite, group: str, role: str) -> None:
    world.issuer.claims = {"groups": [group]}
    begin(page, world, "/queue?select=job/research/AscendJob/pretrain-0")
    page.get_by_role("link", name="Go on as Ann").click()
    # back where the link led, signed in
    page.wait_for_url("**/console/#/queue?select=job/research/AscendJob/pretrain-0")
    name = page.get_by_text("ann@example.org")
    name.wait_for()
    assert (
        name.get_attribute("title")
        == {"viewer": "may look", "changes": "may look, and have changes played forward"}[role]
    )
    kept = {cookie["name"]: cookie for cookie in page.context.cookies()}
    assert kept["__Host-belay-session"]["httpOnly"] and kept["__Host-belay-session"]["secure"]
    assert "__Host-belay-login" not in kept
    page.get_by_role("link", name="What if").click()
    if role == "viewer":
        page.get_by_text("your role is to look only").wait_for()
    else:
        page.get_by_role("button", name="Simulate").wait_for()

    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("heading", name="Not signed in").wait_for()
    assert page.context.cookies() == []
    assert "pretrain" not in page.inner_text("body")


@pytest.mark.parametrize(
    ("claims", "answer", "said"),
    [
        ({}, {"state": "of-another-page"}, "This sign-in was not begun here, or too long ago."),
        ({"nonce": "of-yesterday"}, {}, "The ID token is of another sign-in."),
        ({"exp": NOW - 3600}, {}, "The ID token has expired."),
        ({"groups": ["<b>visitors</b>"], "email": "<i>eve</i>@example.org"}, {}, "<i>eve</i>@example.org may not look"),
    ],
)
def test_who_is_refused_reads_why_and_may_try_again(
    page: Page, world: SignInSite, claims: dict[str, object], answer: dict[str, str], said: str
) -> None:
    world.issuer.claims, world.issuer.answer = claims, answer
    begin(page, world)
    page.get_by_role("link", name="Go on as Ann").click()
    page.get_by_role("heading", name="Not signed in").wait_for()
    assert page.get_by_role("alert").inner_text().startswith(said)
    assert violations(page) == []
    assert page.context.cookies() == []

    # what was wrong is mended: the same place, signed in
    world.issuer.claims, world.issuer.answer = {}, {}
    page.get_by_role("link", name="Sign in again").click()
    page.get_by_role("link", name="Go on as Ann").click()
    page.wait_for_url("**/console/#/queue")
    page.get_by_text("ann@example.org").wait_for()
