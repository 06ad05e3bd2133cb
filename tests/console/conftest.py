"""One browser and one site for all tests of the console; a fresh profile for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.console import sample
from tests.console.browser import Problems, chromium, context_of, opened
from tests.console.site import Site

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page


# of the package: playwright's loop runs in this thread, and other tests begin loops of their own
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="session")
def shared_site() -> Iterator[Site]:
    with Site(sample.document()) as site:
        yield site


class Pages:
    """Opens pages, and fails at the end of the test if one complained or asked for another address."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.problems: list[Problems] = []
        self._contexts: list[BrowserContext] = []

    def open(
        self,
        site: Site,
        place: str,
        size: str = "wide",
        scheme: str = "light",
        expected: str = "",
        touch: bool = False,
        still: bool = False,
    ) -> Page:
        """A page in a fresh profile; ``expected``: a complaint that the test provokes; ``still``: its clock stands at
        the sample's moment.
        """
        page = self._page(site, size, scheme, expected, touch)
        if still:
            page.clock.set_fixed_time(sample.MOMENT)
        return opened(page, site.address, place)

    def refused(self, site: Site, place: str) -> Page:
        """A page of a site that does not let it look."""
        page = self._page(site, "wide", "light", "Failed to load resource")
        page.goto(f"{site.address}/console/#{place}")
        return page

    def _page(self, site: Site, size: str, scheme: str, expected: str, touch: bool = False) -> Page:
        context = context_of(self._browser, size, scheme, has_touch=touch)
        problems = Problems(context, site.address)
        problems.expected = expected
        self.problems.append(problems)
        self._contexts.append(context)
        return context.new_page()

    def close(self) -> None:
        """Close every page; a page that outlives its site complains that nothing answers."""
        while self._contexts:
            self._contexts.pop().close()


@pytest.fixture
def pages(browser: Browser) -> Iterator[Pages]:
    found = Pages(browser)
    yield found
    found.close()
    assert [text for one in found.problems for text in one.found] == []


@pytest.fixture
def site(pages: Pages) -> Iterator[Site]:
    """A site that the test may change; its pages are closed before it goes."""
    with Site(sample.document()) as found:
        yield found
        pages.close()
