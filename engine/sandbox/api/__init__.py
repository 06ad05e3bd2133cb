"""A Kubernetes API server in one process: real kubectl works against it, and every object survives a restart.

`ApiServer` is the whole interface; everything else in the package is its machinery. See engine/sandbox/README.md for
what it does and what it leaves out.
"""

from __future__ import annotations

from engine.sandbox.api.faults import FaultInjector, FaultRule
from engine.sandbox.api.server import ApiServer

__all__ = ["ApiServer", "FaultInjector", "FaultRule"]
