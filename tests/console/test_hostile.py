"""A cluster that means harm: texts stay texts, and the page stays usable."""

from __future__ import annotations

import pytest

from tests.console import sample
from tests.console.conftest import Pages
from tests.console.site import Site

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("console")]
MARKUP = "<img src=x onerror=window.hit=1><script>window.hit=1</script>&quot;'\"`${window.hit=1}"
VIEWS = ("map", "recovery", "queue", "git", "whatif", "faults", "time")


def hostile() -> sample.Row:
    """Names with markup, a message of a megabyte, 100,000 findings and 10,000 faults."""
    document = sample.document()
    document["nodes"]["name"][0] = MARKUP
    document["nodes"]["message"][17] = MARKUP
    for job in document["jobs"]:
        job.update(
            name=f"{MARKUP}{job['name']}", message="long " * 200_000 if job["message"] else MARKUP, wayOut=MARKUP
        )
    for row in document["recoveries"]:
        row.update(job=f"a/b/{MARKUP}", cause=MARKUP, code=MARKUP)
    finding = {"severity": "error", "where": f"{MARKUP}.yaml:1:1", "field": ""}
    document["git"]["findings"] = [{**finding, "message": f"<b>{number}"} for number in range(100_000)]
    document["git"]["revisions"][0]["subject"] = MARKUP
    document["git"]["held"][0]["release"] = MARKUP
    document["faults"] = [
        {**document["faults"][0], "code": f"{number:08X}", "policy": MARKUP} for number in range(10_000)
    ]
    document["problems"] = [MARKUP] * 1_000
    return document


def test_a_hostile_cluster_stays_text(pages: Pages) -> None:
    with Site(hostile()) as site:
        site.answers["explain"] = lambda request, rest: {
            "kind": "chip", "name": MARKUP, "at": None, "text": [MARKUP] * 100, "facts": {MARKUP: MARKUP},
        }  # fmt: skip
        page = pages.open(site, "/queue?select=chip/" + "x%3Cimg%3E/3")
        for view in VIEWS:
            page.evaluate("view => { location.hash = '#/' + view }", view)
            page.wait_for_function(
                "view => document.querySelector(`nav a[href^='#/${view}'][aria-current=page]`)", arg=view
            )
            assert page.get_by_text("This view failed").count() == 0
            assert page.evaluate("document.querySelectorAll('main *').length") < 6_000
        assert page.evaluate("window.hit") is None
        assert page.evaluate("document.images.length") == 0
