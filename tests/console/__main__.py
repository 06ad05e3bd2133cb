"""Pictures for docs/console: every view, light, dark and 390 px wide, and the end of each of ten tasks.

`make console-shots` runs it. The clock stands at the sample's moment: a picture changes only when the page does.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from tests.console import sample
from tests.console.browser import chromium, context_of, opened
from tests.console.site import Site
from tests.console.tasks import TASKS, follow

FOLDER = Path(__file__).resolve().parents[2] / "docs/console"
LOOKS = {"light": ("wide", "light"), "dark": ("wide", "dark"), "390": ("narrow", "light")}
BRANCH = "more-research"
PLACES = {
    "overview": "/overview",
    "map": "/map?select=chip/node-017/3",
    "recovery": "/recovery",
    "queue": "/queue",
    "git": "/git",
    "plan": f"/git?branch={BRANCH}",
    "whatif": "/whatif?select=node/node-002",
    "faults": "/faults",
    "time": "/time",
}
LIMIT = 9 * 512 * 1024
"""Bytes of all pictures together."""


def main(names: list[str]) -> int:
    """Write the pictures, or only those whose names begin so; 1 when all are larger than `LIMIT` together."""
    fresh = Path(tempfile.mkdtemp(prefix="belay-console-"))
    try:
        with Site(sample.document()) as site, chromium() as browser:
            for look, (size, scheme) in LOOKS.items():
                for name, place in PLACES.items():
                    if not _is_wanted(name, names):
                        continue
                    context = context_of(browser, size, scheme)
                    context.clock.set_fixed_time(sample.MOMENT)
                    page = opened(context.new_page(), site.address, place)
                    if name == "plan":
                        page.get_by_role("region", name=f"What {BRANCH} changes").wait_for()
                        page.evaluate("document.querySelector('.plan').scrollIntoView()")
                    if name == "whatif":
                        page.get_by_role("button", name="Add").click()
                        page.get_by_role("button", name="Simulate").click()
                        page.get_by_role("heading", name="Forecast", exact=True).wait_for()
                    page.wait_for_timeout(500)
                    page.screenshot(path=fresh / f"{name}-{look}.png", animations="disabled", caret="hide")
                    context.close()
            for name, task in TASKS.items():
                if not _is_wanted(f"task-{name}", names):
                    continue
                context = context_of(browser, "small")
                context.clock.set_fixed_time(sample.MOMENT)
                page = opened(context.new_page(), site.address, "/overview")
                follow(page, task)
                page.mouse.move(0, 0)
                page.wait_for_timeout(500)
                page.screenshot(path=fresh / f"task-{name}.png", animations="disabled", caret="hide")
                context.close()
        sizes = {file.name: file.stat().st_size for folder in (FOLDER, fresh) for file in folder.glob("*.png")}
        size_of_all = sum(sizes.values())
        if size_of_all > LIMIT:
            print(f"{size_of_all} bytes of pictures are more than {LIMIT}", file=sys.stderr)
            return 1
        for file in sorted(fresh.iterdir()):
            shutil.copyfile(file, FOLDER / file.name)
        return 0
    finally:
        shutil.rmtree(fresh)


def _is_wanted(name: str, names: list[str]) -> bool:
    return not names or name.startswith(tuple(names))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
