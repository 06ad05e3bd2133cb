"""Messages of launcher and ranks for the operator: whole lines on the error stream that the ranks share."""

from __future__ import annotations

import os
import sys

LINE_LIMIT = 2000
"""Maximum number of characters in a line."""


def say(text: str, prefix: str = "belay train: ") -> None:
    """Write one line in one call, so that lines of several processes do not mix. A closed stream is ignored."""
    line = prefix + " ".join(text.splitlines())[:LINE_LIMIT] + "\n"
    try:
        sys.stderr.flush()
        os.write(2, line.encode(errors="replace"))
    except OSError:
        pass
