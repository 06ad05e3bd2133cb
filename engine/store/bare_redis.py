"""Imports redis-py without OpenTelemetry.

Where OpenTelemetry's SDK is installed, redis-py imports it for metrics of its own, which Belay does not read: 70 ms of
each start and 3 MiB of each process, also where no spans are wanted (where they are, ``belay.engine.tracing`` imports
it).
"""

from __future__ import annotations

import sys
from importlib import import_module

_SDK = "opentelemetry"

if "redis" not in sys.modules and _SDK not in sys.modules:
    # as Python marks a module that cannot be imported: redis-py then does without
    sys.modules[_SDK] = None  # type: ignore[assignment]
    try:
        import_module("redis.asyncio")
    finally:
        del sys.modules[_SDK]
