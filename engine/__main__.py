"""Entry point of the command ``belay``. Ctrl-C during imports ends it at once, with 130 and no traceback."""

from __future__ import annotations

import os
import signal

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT, as in shells."""


def main() -> None:
    """Import the verbs and run the given one."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    from engine.cli import main as verbs

    signal.signal(signal.SIGINT, before)
    verbs(prog_name="belay")


if __name__ == "__main__":
    main()
