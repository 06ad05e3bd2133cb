"""Ten tasks of every day are at most two clicks away, and docs/console.md shows each."""

from __future__ import annotations

import pytest

from tests.console.__main__ import FOLDER
from tests.console.conftest import Pages
from tests.console.site import Site
from tests.console.tasks import MOST_CLICKS, TASKS, follow

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("console")]


def test_each_task_is_at_most_two_clicks_away(pages: Pages, shared_site: Site) -> None:
    page = pages.open(shared_site, "/overview", still=True)
    for task in TASKS.values():
        page.goto(f"{shared_site.address}/console/#/overview")
        assert page.evaluate("document.querySelector('main').scrollTop") == 0, "each view begins at its top"
        follow(page, task)


def test_each_task_has_its_picture() -> None:
    text = (FOLDER.parent / "console.md").read_text()
    for name, task in TASKS.items():
        assert len(task.clicks) <= MOST_CLICKS
        assert f"](console/task-{name}.png)" in text and (FOLDER / f"task-{name}.png").is_file()
