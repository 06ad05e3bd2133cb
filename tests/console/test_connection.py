"""What the page does while the cluster changes, the server goes away and comes back, and when it may not look."""

from __future__ import annotations

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
        page.get_by_role("cell", name="8C204E00").first.wait_for(timeout=5_000)
    assert site.called.count("GET /api/v1/state") == 2


def test_a_lost_server_is_said_and_found_again(pages: Pages, site: Site) -> None:
    page = pages.open(site, "/faults", expected="Failed to load resource")
    page.get_by_text("live").wait_for()
    site.stop()
    alert = page.get_by_role("alert")
    alert.wait_for(timeout=10_000)
    assert "may be out of date" in alert.inner_text()
    page.get_by_text("Repeat offenders").wait_for()
    site.start()
    site.publish(with_fault("8C204E00", "0000000000000003"))
    page.get_by_role("button", name="Try now").click()
    page.get_by_role("cell", name="8C204E00").first.wait_for(timeout=10_000)
    page.get_by_text("live").wait_for()
    assert alert.count() == 0


def test_without_proof_nothing_is_shown(pages: Pages) -> None:
    with Site(sample.document(), free=False) as site:
        page = pages.refused(site, "/queue")
        page.get_by_role("heading", name="Not signed in").wait_for()
        assert "pretrain" not in page.content()
        page.get_by_label("Token").wait_for()
