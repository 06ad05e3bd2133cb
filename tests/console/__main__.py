"""Pictures of every view for docs/console: light, dark and 390 px wide. `make console-shots` runs it.

The clock stands at the sample's moment, so that a picture changes only when the page does.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from tests.console import sample
from tests.console.browser import chromium, context_of, opened
from tests.console.site import Site

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
LIMIT = 4 * 1024 * 1024
"""Bytes of all pictures together."""


def main() -> int:
    """Write the pictures; 1 when they are larger than `LIMIT` together."""
    fresh = Path(tempfile.mkdtemp(prefix="belay-console-"))
    try:
        with Site(sample.document()) as site, chromium() as browser:
            for look, (size, scheme) in LOOKS.items():
                for name, place in PLACES.items():
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
        size_of_all = sum(file.stat().st_size for file in fresh.iterdir())
        if size_of_all > LIMIT:
            print(f"{size_of_all} bytes of pictures are more than {LIMIT}", file=sys.stderr)
            return 1
        FOLDER.mkdir(exist_ok=True)
        for file in sorted(fresh.iterdir()):
            shutil.copyfile(file, FOLDER / file.name)
        return 0
    finally:
        shutil.rmtree(fresh)


if __name__ == "__main__":
    sys.exit(main())
