"""A Kubernetes API server in one process: real kubectl works against it, and every object survives a restart.

`ApiServer` is the public interface; the other modules are internal. engine/sandbox/README.md lists the supported and
the missing features.
"""

from __future__ import annotations

from belay.engine.sandbox.api.faults import FaultInjector, FaultRule
from belay.engine.sandbox.api.server import ApiServer

__all__ = ["ApiServer", "FaultInjector", "FaultRule"]
