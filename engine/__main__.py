"""Entry points of ``belay`` and ``kubectl belay``. Ctrl-C during imports ends them with 130 and no traceback."""

from __future__ import annotations

import os
import signal
import sys

from belay.engine.errors import leave


def main() -> None:
    """Import the verbs and run the given one. The launcher says in BELAY_CALLED when kubectl started it."""
    name = os.environ.pop("BELAY_CALLED", "belay")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # verbs that have begun get KeyboardInterrupt instead (belay.engine.cli.invocation)
        signal.signal(signal.SIGINT, leave)
    # the launcher (engine/launcher/belay) blocks the signal while Python starts
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    from belay.engine.cli import main as verbs

    verbs(prog_name=name)


def kubectl_complete() -> None:
    """Answer kubectl's question of how the words after ``kubectl belay`` may go on.

    kubectl 1.26 and later start ``kubectl_complete-belay WORD…``; the last word is the one being typed. An answer is a
    line each, then ``:`` and a number of flags; 4 means that file names are no answer, 0 that they are.
    Source: kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins and cobra's active help and completions.
    """
    from click.shell_completion import ShellComplete

    from belay.engine.cli import main as verbs

    words = sys.argv[1:] or [""]
    found = ShellComplete(verbs, {}, "kubectl belay", "_BELAY_COMPLETE").get_completions(words[:-1], words[-1])
    plain = [item for item in found if item.type == "plain"]
    for item in plain:
        sys.stdout.write(f"{item.value}\t{item.help}\n" if item.help else f"{item.value}\n")
    sys.stdout.write(f":{4 if plain else 0}\n")


if __name__ == "__main__":
    main()
