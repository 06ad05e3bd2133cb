"""The man pages of the command line, written from its verbs: ``make reference``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from click_man.core import write_man_pages

from belay.engine.cli import main

FOLDER = Path(__file__).parents[1] / "docs" / "man"
#: A paragraph that click prints as it is.
_AS_IT_IS = re.compile(r"\x08\n((?:(?!\.PP|\.SH).*\n)+)")
_DATE = re.compile(r'^(\.TH "[^"]*" "1") "\d{4}-\d\d-\d\d"', re.MULTILINE)


def write(folder: Path) -> None:
    """Write a page for each verb, without date and version, so that the same verbs give the same pages."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.1"):
        old.unlink()
    write_man_pages("belay", main, version="", target_dir=str(folder))
    for page in folder.glob("*.1"):  # click-man writes today's date where it is given none
        text = _AS_IT_IS.sub(r".nf\n\1.fi\n", page.read_text())
        page.write_text(_DATE.sub(r'\1 ""', text))


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
