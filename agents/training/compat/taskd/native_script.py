"""The patched torchrun with a script that protects itself (``import belay_training``): Belay's node agent runs its
ranks, as ``belay train`` does, so that one that dies is replaced and takes its state from a peer.

TaskD's agent restarts a process and leaves the rest to the controller of MindIO TFT, which such a script has not.
"""

from __future__ import annotations

import ast
import logging
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

log = logging.getLogger(__name__)

PACKAGE: Final = "belay_training"
SOURCE_LIMIT: Final = 4 << 20
"""Largest script that is looked at, in bytes."""


class NotHere(ValueError):
    """Belay's node agent cannot run this launch; the text says why."""


def protects_itself(script: str) -> bool:
    """Whether a script imports ``belay_training``; False where that cannot be known."""
    try:
        path = Path(script)
        if path.stat().st_size > SOURCE_LIMIT:
            return False
        tree = ast.parse(path.read_bytes(), script)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and any(name.name.partition(".")[0] == PACKAGE for name in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] == PACKAGE:
            return True
    return False


def arguments(config: Any, argv: Sequence[str] | None) -> list[str] | None:
    """The options of ``belay train`` for a launch of torchrun (its ``LaunchConfig``, and the script with its
    arguments); None for a script that does not protect itself. Raises ``NotHere``."""
    if argv is None or argv[0] == "-m" or not protects_itself(argv[0]):
        return None
    if any("${local_rank}" in one for one in argv):
        raise NotHere("the script is given --local-rank: read LOCAL_RANK")
    if _written(config.logs_specs):
        raise NotHere("--redirects or --tee is given")
    if config.numa_options is not None:
        raise NotHere("--numa-binding is given")
    if config.min_nodes != config.max_nodes:
        raise NotHere(f"--nnodes {config.min_nodes}:{config.max_nodes} lets the number of nodes change")
    options = ["--nproc", str(config.nproc_per_node)]
    if config.max_nodes > 1:
        host, _, port = str(config.rdzv_endpoint).rpartition(":")
        if config.rdzv_backend != "static" or not host or not port.isdigit():
            raise NotHere(f"several nodes need --master-addr and --node-rank, not --rdzv-backend {config.rdzv_backend}")
        options += ["--nnodes", str(config.max_nodes), "--node-rank", str(config.rdzv_configs["rank"])]
        options += ["--master-addr", host.strip("[]"), "--master-port", port]
    return [*options, *argv]


def run(options: Sequence[str], run_id: str) -> int:
    """Run the ranks until the job has ended; the exit code of ``belay train``."""
    from belay.agents.training.train.agent import launcher

    # by these scripts recognise torchrun
    os.environ.update(TORCHELASTIC_RUN_ID=run_id, TORCHELASTIC_RESTART_COUNT="0")
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        return launcher.main(options)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def possible(config: Any, argv: Sequence[str] | None) -> list[str] | None:
    """As `arguments`; None, with the reason in the log, where Belay's node agent cannot run the launch."""
    try:
        found = arguments(config, argv)
        if found is not None and threading.current_thread() is not threading.main_thread():
            raise NotHere("it is launched from a thread")
    except NotHere as error:
        script = argv[0] if argv else ""
        log.warning("%s is not repaired after faults: Belay's node agent cannot run it: %s", script, error)
        return None
    return found


def _written(logs: Any) -> bool:
    """Whether output of ranks is to be redirected or copied."""
    settings = (getattr(logs, name, 0) for name in ("_redirects", "_tee"))
    return any(any(one.values()) if isinstance(one, dict) else bool(one) for one in settings)
