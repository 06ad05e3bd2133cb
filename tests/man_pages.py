"""The man pages of the command line, written from its verbs: ``make reference``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from click_man.core import write_man_pages

from engine.cli import main

FOLDER = Path(__file__).parents[1] / "docs" / "man"
_DATE = re.compile(r'^(\.TH "[^"]*" "1") "\d{4}-\d\d-\d\d"', re.MULTILINE)


def write(folder: Path) -> None:
    """Write a page for each verb, without date and version, so that the same verbs give the same pages."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.1"):
        old.unlink()
    write_man_pages("belay", main, version="", target_dir=str(folder))
    for page in folder.glob("*.1"):  # click-man writes today's date where it is given none
        page.write_text(_DATE.sub(r'\1 ""', page.read_text()))


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
