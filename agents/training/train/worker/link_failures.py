"""Which errors a failed collective caused, and not the script."""

from __future__ import annotations

import dis
import os
from typing import Final

import torch
import torch.distributed as dist

from belay.agents.training.train.worker.groups import Groups

DEVICE_STOPPED: Final = "error code is 107019"
"""What any operator raises on an Ascend device whose work was stopped (CANN, ACL_ERROR_RT_DEVICE_TASK_ABORT): a code
that CANN puts into the text, not a word of it."""


def is_link_failure(error: BaseException, groups: Groups, generation: int) -> bool:
    """Whether a failed collective caused the error, and not the script: by its class, and by where it comes from.

    Gloo's errors are plain ``RuntimeError`` of C++, like those of any operator; then the sockets of its groups are
    closed or shut down.
    """
    if isinstance(error, dist.DistError) or DEVICE_STOPPED in str(error):
        return True
    if type(error) is not RuntimeError or (place := _raised_by_a_library(error)) is None:
        return False
    if groups.sockets.broken(generation):
        return True
    # collectives of an accelerator have no sockets that can be looked at
    return groups.device is not None and place.startswith(_COLLECTIVES)


_COLLECTIVES = tuple(os.path.join(os.path.dirname(torch.__file__), part) for part in ("distributed", "autograd"))


def _raised_by_a_library(error: BaseException) -> str | None:
    """The file of the innermost line, where that line called C++ that raised the error; None if it has a
    ``raise``."""
    trace = error.__traceback__
    if trace is None:
        return None
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    opcode = dis.opname[code.co_code[trace.tb_lasti]]
    return None if opcode in ("RAISE_VARARGS", "RERAISE") else code.co_filename
