"""What the page does while the cluster changes, the server goes away and comes back, and when it may not look."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.console import sample
from tests.console.conftest import Pages
from tests.console.site import Site

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("console")]


def with_fault(code: str, moment: str) -> sample.Row:
    """The sample with one more fault, as of the next moment."""
    document = sample.document(moment=moment, seconds=5)
    fault = {"code": code, "level": "SeparateNPU", "node": "node-001", "chip": 2, "since": sample.at(4), "count": 1}
    document["faults"].insert(0, {**fault, "policy": "", "action": "isolated"})
    return document


def test_a_change_reaches_every_tab(pages: Pages, site: Site) -> None:
    first = pages.open(site, "/faults")
    second = first.context.new_page()
    second.goto(first.url)
    second.get_by_text("live").wait_for()
    first.get_by_text("live").wait_for()
    site.publish(with_fault("8C204E00", "0000000000000002"))
    for page in (first, second):
        page.get_by_role("cell", name="8C204E00").first.wait_for()
    assert site.called.count("GET /api/v1/state") == 2


def test_what_is_explained_of_a_chip_follows_the_cluster(pages: Pages, site: Site) -> None:
    lines = {"text": "is healthy"}
    site.answers["explain"] = lambda request, name: {
        "kind": "chip", "name": name.partition("/")[2], "at": None, "text": [lines["text"]], "facts": {},
    }  # fmt: skip
    page = pages.open(site, "/map?select=chip/node-001/2")
    aside = page.get_by_role("complementary", name="Selected: node-001/2")
    aside.get_by_text("is healthy").wait_for()
    page.get_by_text("live", exact=True).wait_for()
    lines["text"] = "is isolated since 03:12:04"
    site.publish(with_fault("8C204E00", "0000000000000002"))
    aside.get_by_text("is isolated since 03:12:04").wait_for()
    path = "GET /api/v1/explain/chip/node-001/2"
    assert site.called.count(path) == 2
    document = with_fault("8C204E00", "0000000000000003")
    document["faults"].insert(1, {**document["faults"][0], "node": "node-002"})
    page.clock.install()
    site.publish(document)
    page.wait_for_selector(".stage[data-moment='0000000000000003']")
    page.clock.run_for(5_000)
    page.evaluate("() => fetch('/api/v1/viewer').then((reply) => reply.text())")
    assert site.called.count(path) == 2, "a fault of another node is no reason to ask"


@pytest.mark.parametrize(
    ("view", "question", "shown"),
    [("queue", "history", "Waiting jobs over time"), ("faults", "heat", "Faults over time")],
)
def test_what_happened_is_read_again_but_not_with_every_change(
    pages: Pages, site: Site, view: str, question: str, shown: str
) -> None:
    page = pages.open(site, f"/{view}")
    page.get_by_text("live", exact=True).wait_for()
    page.get_by_role("heading", name=shown).wait_for()
    page.clock.install()
    path = f"GET /api/v1/{question}"
    before = site.called.count(path)
    for turn in range(6):
        site.publish(with_fault(f"8C204E0{turn}", f"00000000000001{turn:02}"))
    # what did not arrive before the clock runs is no reason to ask
    page.wait_for_selector("main[data-moment='0000000000000105']")
    with page.expect_response(lambda response: f"/api/v1/{question}" in response.url):
        page.clock.run_for(11_000)
    # the bar of recorded moments, below every view, reads the history too
    assert site.called.count(path) - before <= 3


def test_a_lost_server_is_said_and_found_again(pages: Pages, site: Site) -> None:
    page = pages.open(site, "/faults", expected="Failed to load resource")
    page.get_by_text("live", exact=True).wait_for()
    # from here no time passes: the page tries again when it is asked to, and not a moment earlier
    page.clock.install()
    page.clock.pause_at(datetime.now(UTC) + timedelta(minutes=1))
    site.stop()
    alert = page.get_by_role("alert")
    alert.wait_for()
    assert "may be out of date" in alert.inner_text()
    page.get_by_text("Repeat offenders").wait_for()
    site.start()
    site.publish(with_fault("8C204E00", "0000000000000003"))
    page.get_by_role("button", name="Try now").click()
    page.get_by_role("cell", name="8C204E00").first.wait_for()
    page.get_by_text("live", exact=True).wait_for()
    alert.wait_for(state="hidden")


def test_without_proof_nothing_is_shown(pages: Pages) -> None:
    with Site(sample.document(), free=False) as site:
        page = pages.refused(site, "/queue")
        page.get_by_role("heading", name="Not signed in").wait_for()
        assert "pretrain" not in page.content()
        page.get_by_label("Token").wait_for()


def test_a_readers_wrong_clock_shifts_nothing_that_still_runs(pages: Pages, site: Site) -> None:
    """The page's clock stands at the sample's moment; the server says that it is an hour later."""
    page = pages.open(site, "/faults", still=True)
    before = page.locator("main time").first.inner_text()
    pages.close()
    site.stop()
    site.wall = sample.at(3600)
    site.start()
    page = pages.open(site, "/faults", still=True)
    page.wait_for_function("before => document.querySelector('main time')?.innerText !== before", arg=before)
