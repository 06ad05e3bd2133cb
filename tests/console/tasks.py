"""Ten tasks of every day, each at most two clicks from the overview: what is clicked, and what then stands there.

`make console-shots` takes a picture at the end of each for docs/console.md; test_tasks.py follows the same clicks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from playwright.sync_api import Page

MOST_CLICKS: Final = 2


class ConsoleTask(NamedTuple):
    """``clicks`` are names of links or buttons, in order; ``shown`` is the text that answers."""

    clicks: tuple[str, ...]
    shown: str


TASKS: Final = {
    "waits": ConsoleTask(("5 jobs wait",), "Raise the capacity of queue research by 64"),
    "isolate": ConsoleTask(("node-044/3",), "belay isolate node-044/3 --reason"),
    "drain": ConsoleTask(("node-017",), "belay drain node-017 --reason"),
    "eviction": ConsoleTask(("fd4a019142",), "git show fd4a019142"),
    "night": ConsoleTask(("All of it",), "deletion of research/AscendJob/old-run waits for a confirmation"),
    "priority": ConsoleTask(
        ("research/pretrain-0", "research/AscendJob/pretrain-0 on the map"),
        "belay priority research/pretrain-0 CLASS",
    ),
    "rollback": ConsoleTask(("Git", "311a2743e6"), "belay rollback 311a2743e6"),
    "layout": ConsoleTask(("node-017",), "belay new layout NAME --pool training"),
    "adopt": ConsoleTask(("research/llm-70b",), "belay adopt research/AscendJob/llm-70b"),
    "usage": ConsoleTask(("Recovery",), "belay usage --by user"),
}


def follow(page: Page, task: ConsoleTask) -> None:
    """From the overview to the answer."""
    page.get_by_role("list", name="What happened last").wait_for()
    for name in task.clicks:
        target = page.get_by_role("link", name=name).or_(page.get_by_role("button", name=name))
        target.first.click()
    page.get_by_text(task.shown).first.scroll_into_view_if_needed()
