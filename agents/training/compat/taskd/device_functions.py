"""What a training framework does to its chips for operations on a running job: move links, run stress tests.

Functions, codes and texts: component/taskd/taskd/python/framework/worker/worker.py of MindCluster. The documents name
those of torch_npu; MindSpore has its own.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Mapping
from typing import Any, Final

log = logging.getLogger(__name__)

PYTORCH, MINDSPORE = "pt", "ms"
TESTS: Final = {0: "aic", 1: "hccs"}
OK, FAILED, FAULT_FOUND, TIMEOUT, VOLTAGE = 0, 1, 2, 3, 4
TEXTS: Final = {
    OK: "OK", FAILED: "exec failed", FAULT_FOUND: "find fault rank", TIMEOUT: "exec timeout",
    VOLTAGE: "voltage recovery failed",
}  # fmt: skip
_MAX_REASON: Final = 120


def switch_links(framework: str, ranks: list[int], ops: list[bool]) -> bool:
    """Move the links of ranks to the partner card (True) or back; False where that fails."""
    try:
        if framework == MINDSPORE:
            module: Any = importlib.import_module("mindspore.communication.management")
        else:
            module = importlib.import_module("torch_npu").npu
        return bool(module._comm_switch_nic(ranks, ops))
    except Exception as error:
        # whatever the driver raises, the links did not move
        log.error("links cannot be switched here: %s", str(error)[:200])
        return False


def stress(framework: str, op: int, environ: Mapping[str, str] | None = None) -> str:
    """Run one stress test on this process's chip: `<code>-<text>`.

    An exception of the test itself counts as a voltage that was not restored: training must not go on with it.
    """
    environ = os.environ if environ is None else environ
    try:
        if framework == MINDSPORE:
            test: Any = importlib.import_module("mindspore.utils").stress_detect
        else:
            npu: Any = importlib.import_module("torch_npu").npu
            test = npu.stress_detect
            npu.set_device(int(environ["LOCAL_RANK"]))  # a new thread begins with chip 0
    except Exception as error:
        log.error("the stress test cannot run here: %r", error)
        return _answer(FAILED, error)
    try:
        code = test(TESTS[op])
    except Exception as error:
        # the driver's own errors are of any class
        log.exception("the stress test %s failed", TESTS[op])
        return _answer(VOLTAGE, error)
    return _answer(code if code in TEXTS else FAILED)


def _answer(code: int, error: Exception | None = None) -> str:
    reason = "" if error is None else f": {str(error)[:_MAX_REASON] or type(error).__name__}"
    return f"{int(code)}-{TEXTS[code]}{reason}".replace(",", ";")
