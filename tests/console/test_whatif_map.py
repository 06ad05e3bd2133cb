"""What is put onto the map of a what-if: dragged there, pressed and placed (touch), as files, or by keyboard alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.console.conftest import Pages
from tests.console.site import Site

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("console")]
JOB = "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: tokenise\n"
_FILES = """(texts) => { const data = new DataTransfer();
  for (const [name, text] of texts) data.items.add(new File([text], name)); return data; }"""


def a_place(page: Page) -> tuple[dict[str, float], str, str]:
    """A point of the map, its node and its chip, as a press there fills them in."""
    canvas = the_map(page)
    canvas.wait_for()
    page.wait_for_function("() => document.querySelector('.plain-map canvas').width > 300")
    box = canvas.bounding_box()
    assert box is not None
    node = page.get_by_label("Node", exact=True)
    for step in range(1, 200):
        # down a diagonal until a chip is hit: where chips lie is the layout's business
        point = {"x": box["width"] * (step % 20 + 0.5) / 40, "y": box["height"] * (step % 37 + 1) / 40}
        canvas.click(position=point)
        if node.input_value():
            return point, node.input_value(), page.get_by_label("Chip", exact=True).input_value()
    raise AssertionError("no chip was hit")


def the_map(page: Page) -> Locator:
    return page.locator(".plain-map canvas").nth(1)


def tried(page: Page) -> list[str]:
    return [one.inner_text().removesuffix("✕").strip() for one in page.locator("ol.changes li").all()]


def test_changes_are_dragged_onto_the_map(pages: Pages, shared_site: Site) -> None:
    page = pages.open(shared_site, "/whatif")
    point, node, chip = a_place(page)
    tray = page.get_by_role("group", name="To put onto the map")
    for what in ("Fault 80C98001", "Drain", "Cordon", "Branch more-research"):
        tray.get_by_role("button", name=what, exact=True).drag_to(the_map(page), target_position=point)
        page.get_by_role("button", name="Remove:").nth(len(tried(page)) - 1).wait_for()
    assert tried(page) == [
        f"fault 80C98001 on {node}/{chip}",
        f"drain {node}",
        f"cordon {node}",
        "merge more-research",
    ]
    # the job of the form can be dragged once there is one
    page.get_by_role("button", name="Job", exact=True).click()
    page.get_by_label("Job as YAML").fill(JOB)
    tray.get_by_role("button", name="Job of the form").drag_to(the_map(page), target_position=point)
    page.get_by_text("job tokenise").wait_for()


def test_files_are_dropped_onto_the_map_or_chosen(pages: Pages, shared_site: Site) -> None:
    page = pages.open(shared_site, "/whatif")
    the_map(page).wait_for()
    two = [["a.yaml", JOB], ["b.yaml", JOB.replace("tokenise", "score")]]
    page.dispatch_event(".plain-map", "drop", {"dataTransfer": page.evaluate_handle(_FILES, two)})
    page.get_by_text("job score").wait_for()
    assert tried(page) == ["job tokenise", "job score"]
    page.dispatch_event(".plain-map", "drop", {"dataTransfer": page.evaluate_handle(_FILES, [["no.yaml", "  "]])})
    assert page.get_by_role("alert").inner_text() == "no.yaml: Paste the job's YAML."
    # a file that misses the map leaves the page where it is
    data = page.evaluate_handle(_FILES, [["a.yaml", JOB]])
    page.dispatch_event("header", "drop", {"dataTransfer": data})
    assert page.url.partition("#")[2].startswith("/whatif") and len(tried(page)) == 2
    page.get_by_role("button", name="Job", exact=True).click()
    file = {"name": "c.yaml", "mimeType": "text/yaml", "buffer": JOB.replace("tokenise", "rank").encode()}
    page.get_by_label("or from files").set_input_files(file)  # type: ignore[arg-type]
    page.get_by_text("job rank").wait_for()


def test_fingers_place_changes_on_a_narrow_map(pages: Pages, shared_site: Site) -> None:
    page = pages.open(shared_site, "/whatif", "narrow", touch=True)
    point, node, _ = a_place(page)
    drain = page.get_by_role("button", name="Drain", exact=True).last
    drain.tap()
    assert drain.get_attribute("aria-pressed") == "true"
    page.get_by_text("press a chip or node on the map").wait_for()
    the_map(page).tap(position=point)
    page.get_by_role("button", name=f"Remove: drain {node}", exact=True).wait_for()
    drain.tap()
    page.get_by_role("button", name="Fault 80C98001").tap()
    the_map(page).tap(position=point)
    # chips are smaller than a finger there: the list says which one was hit
    page.get_by_text(f"fault 80C98001 on {node}/").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_every_change_is_made_by_keyboard_alone(pages: Pages, shared_site: Site) -> None:
    page = pages.open(shared_site, "/whatif")
    keys = page.keyboard

    def from_the_top() -> None:
        page.evaluate("document.querySelector('.skip').focus()")

    def reach(name: str) -> None:
        """Tab on until the part with this name has the focus."""
        for _ in range(60):
            keys.press("Tab")
            said = "document.activeElement.ariaLabel ?? document.activeElement.labels?.[0]?.innerText"
            if page.evaluate(f"({said} ?? document.activeElement.innerText).trim().split('\\n')[0]") == name:
                return
        raise AssertionError(f"{name} is not reached")

    reach("Node")
    keys.type("node-004")
    reach("Add")
    keys.press("Enter")
    for kind in ("Drain", "Cordon"):
        from_the_top()
        reach(kind)
        keys.press("Enter")
        reach("Add")
        keys.press("Enter")
    from_the_top()
    reach("Branch")
    keys.press("Enter")
    reach("Branch")  # the list
    keys.type("more")
    reach("Add")
    keys.press("Enter")
    from_the_top()
    reach("Job")
    keys.press("Enter")
    reach("Job as YAML")
    keys.insert_text(JOB)
    reach("Add")
    keys.press("Enter")
    said = ["fault 80C98001 on node-004/0", "drain node-004", "cordon node-004", "merge more-research", "job tokenise"]
    page.get_by_text(said[-1]).wait_for()
    assert tried(page) == said
    reach("Simulate")
    keys.press("Enter")
    page.get_by_role("heading", name="Forecast", exact=True).wait_for()
