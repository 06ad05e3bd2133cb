"""Every view in a real browser: what it shows, by keyboard alone, narrow, dark, printed, to a reader of screens."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.console import sample
from tests.console.conftest import Pages
from tests.console.site import Site

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("console")]
SHOWN = {
    "overview": "What happened last",
    "map": "in use",
    "recovery": "From fault to running again",
    "queue": "Raise the capacity of queue research by 64",
    "git": "desired/jobs/pretrain-4.yaml:14:9",
    "whatif": "Try it on a copy",
    "faults": "Repeat offenders",
    "time": "deletion of research/AscendJob/old-run waits for a confirmation",
}
ENGLISH = re.compile(r"[A-Za-z]{2,}(?: [a-z]{2,}){2,}")


def violations(page: Any) -> list[str]:
    """What axe finds on a page that keeps people out, or is in their way."""
    from axe_playwright_python.sync_playwright import Axe

    # what is read again is shown pale until it is there
    page.wait_for_function("() => !document.querySelector('.stale')")
    found = Axe().run(page).response["violations"]
    return [f"{one['impact']} {one['id']}: {one['nodes'][0]['html'][:160]}" for one in found]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", SHOWN)
def test_a_view_shows_its_part_and_admits_everyone(pages: Pages, shared_site: Site, view: str, scheme: str) -> None:
    page = pages.open(shared_site, f"/{view}", "wide", scheme, still=True)
    page.get_by_text(SHOWN[view]).first.wait_for()
    assert page.title().startswith(page.locator("nav a[aria-current=page]").inner_text())
    assert violations(page) == []
    # from a phone in portrait to a wall: nothing is cut off, and nothing scrolls sideways
    for width, height in ((320, 640), (768, 1024), (960, 600), (1170, 800), (3840, 2160)):
        page.set_viewport_size({"width": width, "height": height})
        page.get_by_text(SHOWN[view]).first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
        keys = page.get_by_role("button", name="Keys").bounding_box()
        assert keys is not None and keys["x"] + keys["width"] <= width, width
        if width in (320, 3840):
            assert violations(page) == [], width


def test_the_overview_answers_and_its_numbers_lead_to_their_rows(pages: Pages, shared_site: Site) -> None:
    page = pages.open(shared_site, "/")
    assert page.locator(".verdict").count() == 5
    for text in ("5 jobs wait", "1 recovery under way", "32 chips stand still", "chips out of service", "lost in 24 h"):
        page.locator(".verdicts").get_by_text(text).first.wait_for()
    page.locator(".verdicts").get_by_text("Rejected: 2 findings in desired/jobs/pretrain-4.yaml").wait_for()
    # each number, and the caption of the rows behind it
    for link, rows in (
        ("2 findings", "Findings: 2"),
        ("held back", "Held back: 2"),
        ("4 nodes out of service", "4 nodes not healthy"),
        ("23 chips out of service", "23 chips, those that are not healthy first"),
        ("4 chips not quite healthy", "4 chips, those that are not healthy first"),
        ("8 faults reported", "Now: 8"),
        ("5 jobs wait for 320 chips", "Waiting: 5"),
        ("1 recovery under way", "From fault to running again"),
        ("32 chips stand still", "From fault to running again"),
        ("12.4 chip-hours lost in 24 h", "What was lost, and to what"),
    ):
        page.locator(".verdicts").get_by_role("link", name=link).click()
        page.wait_for_function("() => /rows=|state=/.test(location.hash)")
        page.get_by_text(rows).first.wait_for()
        page.go_back()
    page.get_by_role("region", name="Needs a person").get_by_text("old-run").first.wait_for()


def test_problems_of_the_server_itself_are_listed(pages: Pages, site: Site) -> None:
    site.publish(sample.document() | {"problems": ["the history is not written: disk full; the last hour is shown"]})
    page = pages.open(site, "/overview")
    page.locator(".verdict.bad").get_by_text("the history is not written: disk full").wait_for()


def test_a_link_to_a_time_shows_what_happened_then(pages: Pages, site: Site) -> None:
    asked: list[Any] = []
    before = site.answers["records"]
    site.answers["records"] = lambda request, body: asked.append(dict(request.query)) or before(request, body)
    page = pages.open(site, f"/time?at={sample.at(-9_000)}&select=chip/node-044/3", still=True)
    page.get_by_text("You look at 2026-11-23 00:42").wait_for()
    what = page.get_by_role("list", name="What happened").get_by_role("listitem")
    what.first.wait_for()
    assert [one.inner_text().split("\n")[-1] for one in what.all()] == [
        "node-044/3 fault on chip 3: 80E01801 RestartRequest"
    ]
    assert {row["subject"] for row in asked} == {"chip"} and {row["name"] for row in asked} == {"node-044/3"}
    assert asked[-1]["until"] == sample.at(-9_000 + 300)
    page.get_by_label("only node-044/3").uncheck()
    page.get_by_text("rescheduled: FaultyChip").wait_for(state="hidden")
    page.get_by_text("placed: 4 pods").first.wait_for()
    page.get_by_role("link", name="placed 1").click()
    what.nth(1).wait_for(state="hidden")
    assert what.count() == 1 and "kind=placed" in page.url
    page.get_by_role("button", name="Back to now").click()
    page.get_by_text("You look at").wait_for(state="hidden")


def test_without_a_history_the_moments_are_left(pages: Pages, site: Site) -> None:
    site.can["records"] = False
    page = pages.open(site, "/time")
    page.get_by_text("This server keeps no history").wait_for()
    page.goto(f"{site.address}/console/#/recovery")
    page.get_by_text("What the status still says").wait_for()
    page.get_by_role("row", name="FaultyChip 80C98001").first.wait_for()
    assert not [call for call in site.called if call.endswith(("/records", "/report"))]


def test_a_try_is_taken_back_step_by_step(pages: Pages, shared_site: Site) -> None:
    page = pages.open(shared_site, "/whatif?select=node/node-002")
    page.get_by_role("group", name="What to try").get_by_role("button", name="Node dies").click()
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_text("node-002 dies").wait_for()
    page.get_by_role("button", name="Remove: node-002 dies").click()
    page.get_by_text("node-002 dies").wait_for(state="hidden")
    page.get_by_role("button", name="Undo").click()
    page.get_by_text("node-002 dies").wait_for()
    page.keyboard.press("u")
    page.get_by_text("node-002 dies").wait_for(state="hidden")
    assert page.get_by_role("button", name="Undo").is_disabled()


def test_a_chip_is_isolated_by_two_clicks_and_a_copied_commit(pages: Pages, shared_site: Site) -> None:
    page = pages.open(shared_site, "/map?select=node/node-002")
    aside = page.get_by_role("complementary", name="Selected: node-002")
    aside.get_by_text("belay isolate node-002 --reason").wait_for()
    aside.get_by_role("link", name="Drain node-002").click()
    page.get_by_text("drain node-002").first.wait_for()


def test_the_page_speaks_chinese(pages: Pages, shared_site: Site) -> None:
    page = pages.open(shared_site, "/overview")
    page.get_by_label("Language").select_option("zh")
    page.get_by_role("link", name="芯片图").click()
    page.get_by_role("heading", name="Belay").wait_for()
    assert page.locator("html").get_attribute("lang") == "zh-CN"
    assert page.title().startswith("芯片图")
    assert violations(page) == []
    # English words in a row are the engine's and the repository's own: reasons, findings, subjects of commits, history
    said = sample.every_text()
    for view in SHOWN:
        page.goto(f"{shared_site.address}/console/#/{view}")
        page.wait_for_function("view => document.querySelector('nav [aria-current]').href.includes(view)", arg=view)
        shown = page.locator("body").inner_text()
        assert [words for words in ENGLISH.findall(shown) if words not in said] == [], view


def test_the_plan_of_a_branch_and_its_diff(pages: Pages, shared_site: Site) -> None:
    page = pages.open(shared_site, "/git")
    page.get_by_role("button", name="Plan of more-research").click()
    page.get_by_role("heading", name="What merging more-research does").wait_for()
    diff = page.get_by_role("region", name="What more-research changes")
    diff.locator("mark").nth(1).wait_for()
    assert [mark.inner_text() for mark in diff.locator("mark").all()] == ["96", "128"]
    assert diff.locator("tr.new").count() == 6
    assert violations(page) == []


def test_the_plan_of_a_pull_request_says_how_to_get_it(pages: Pages, shared_site: Site) -> None:
    page = pages.open(shared_site, "/git?branch=pull/7")
    page.get_by_role("heading", name="What merging pull/7 does").wait_for()
    page.get_by_text(
        "git fetch origin pull/7/head && git switch --detach FETCH_HEAD && belay plan --desired ."
    ).wait_for()


def test_a_forecast_plays_beside_the_cluster_and_writes_nothing(pages: Pages, site: Site) -> None:
    asked = []
    before = site.answers["what-if"]
    site.answers["what-if"] = lambda request, body: asked.append(body) or before(request, body)
    page = pages.open(site, "/whatif?select=node/node-002")
    page.get_by_role("button", name="Add").click()
    page.get_by_role("button", name="Simulate").click()
    page.get_by_text("runs again after 28 s").wait_for()
    assert asked[0]["changes"] == [{"do": "fault", "node": "node-002", "chip": 0, "code": "80C98001"}]
    page.get_by_text("belay inject fault node-002/Ascend910-0 80C98001").wait_for()
    page.get_by_role("img", name="Map of the forecast; 16 chips differ").wait_for()
    page.get_by_role("slider", name="Frame").fill("0")
    page.get_by_role("img", name="Map of the forecast; 1 chip differs").wait_for()
    assert violations(page) == []
    # a visit to another view loses nothing, and the address says what was tried
    page.get_by_role("link", name="Queue").click()
    page.get_by_role("link", name="What if").click()
    page.get_by_text("fault 80C98001 on node-002/0").wait_for()
    other = page.get_by_text("The forecast below is of other changes")
    assert other.count() == 0
    page.get_by_role("button", name="Add").click()
    other.wait_for()
    written = {call for call in site.called if not call.startswith("GET ")}
    assert written == {"POST /api/v1/what-if"}


def test_the_way_out_of_a_waiting_job_is_drawn_on_the_map(pages: Pages, shared_site: Site) -> None:
    page = pages.open(shared_site, "/queue")
    page.get_by_role("link", name="research/pretrain-0", exact=True).click()
    page.get_by_role("img", name="Way out of research/pretrain-0: 5 nodes framed").wait_for()
    page.get_by_role("link", name="Way out of research/AscendJob/pretrain-0 on the map").click()
    aside = page.get_by_role("complementary", name="Selected: research/AscendJob/pretrain-0")
    aside.get_by_role("link", name="node-017").wait_for()

    def frames(are_drawn: bool) -> None:
        """Wait until pixels of the frames' colour are over the map, or none is."""
        page.wait_for_function(
            """drawn => { const canvas = document.querySelectorAll(".stage canvas")[1];
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            let found = 0;
            for (let at = 0; at < data.length; at += 4)
              if (data[at] === 0x8a && data[at + 1] === 0x4b && data[at + 2] === 0 && data[at + 3] === 255) found++;
            return drawn ? found > 500 : found === 0; }""",
            arg=are_drawn,
        )

    frames(are_drawn=True)
    # without a selection nothing is framed, until the legend is asked for all ways out
    page.keyboard.press("Escape")
    page.wait_for_function("() => !location.hash.includes('select')")
    frames(are_drawn=False)
    page.get_by_role("button", name="ways out 6 nodes").click()
    page.wait_for_function("() => location.hash.includes('ways-out')")
    frames(are_drawn=True)
    assert violations(page) == []


def test_mistakes_of_a_forecast_are_named_before_the_server_is_asked(pages: Pages, shared_site: Site) -> None:
    page = pages.open(shared_site, "/whatif")
    page.get_by_label("Node").fill("node-999")
    page.get_by_role("button", name="Add").click()
    assert page.get_by_role("alert").inner_text() == "There is no node node-999."
    page.get_by_label("Node").fill("node-001")
    page.get_by_label("Chip").fill("9")
    page.get_by_role("button", name="Add").click()
    assert page.get_by_role("alert").inner_text() == "Node node-001 has no chip 9."


def test_the_back_button_and_links_keep_view_and_selection(pages: Pages, shared_site: Site) -> None:
    page = pages.open(shared_site, "/queue")
    page.get_by_role("link", name="research/pretrain-1", exact=True).click()
    page.wait_for_url("**/#/queue?select=job/research/AscendJob/pretrain-1")
    page.get_by_role("link", name="Faults").click()
    page.get_by_role("button", name="Node", exact=True).click()
    page.wait_for_url("**by=node**")
    assert "select=job/research/AscendJob/pretrain-1" in page.url
    page.go_back()
    page.go_back()
    page.get_by_text("Waiting: 5").wait_for()
    page.locator("tr[aria-selected=true]").get_by_text("research/pretrain-1").wait_for()
    page.go_back()
    page.wait_for_url("**/#/queue")


def test_everything_is_reached_by_keyboard(pages: Pages, shared_site: Site) -> None:
    page = pages.open(shared_site, "/map")
    for key, view in zip("1345678", ["overview", *list(SHOWN)[2:]], strict=True):
        page.keyboard.press(key)
        page.wait_for_function("view => location.hash.startsWith('#/' + view)", arg=view)
    page.keyboard.press("3")
    fold = page.get_by_role("button", name="Stages of research/llm-70b").first
    fold.focus()
    page.keyboard.press("Enter")
    page.locator("button[aria-expanded=true]").first.wait_for()
    page.get_by_role("cell", name="asked to stop").first.wait_for()
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keys").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="hidden")
    for theme in ("light", "dark"):
        page.keyboard.press("t")
        page.locator(f"html[data-theme={theme}]").wait_for()


def test_a_view_is_printed_whole(pages: Pages, shared_site: Site) -> None:
    page = pages.open(shared_site, "/git")
    page.get_by_text("Branches").first.wait_for()
    page.emulate_media(media="print")
    assert not page.get_by_role("navigation").is_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('main')).overflow") == "visible"
    assert page.pdf().startswith(b"%PDF")


def test_a_command_is_copied(pages: Pages, shared_site: Site) -> None:
    page = pages.open(shared_site, "/git")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("row", name="old-run").get_by_role("button", name="Copy").click()
    page.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").startswith("git revert ")
