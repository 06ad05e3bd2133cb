"""redis-py, imported here alone, and without OpenTelemetry.

Where OpenTelemetry's SDK is installed, redis-py imports it for metrics of its own, which Belay does not read: 70 ms of
each start and 3 MiB of each process, also where no spans are wanted (where they are, ``belay.engine.tracing`` imports
it).
"""

from __future__ import annotations

import sys

_SDK = "opentelemetry"
_hidden = "redis" not in sys.modules and _SDK not in sys.modules
if _hidden:
    # as Python marks a module that cannot be imported: redis-py then does without
    sys.modules[_SDK] = None  # type: ignore[assignment]
try:
    import redis
    import redis.asyncio
    import redis.asyncio.retry
    import redis.asyncio.sentinel
    import redis.backoff
    import redis.retry
    import redis.sentinel
finally:
    if _hidden:
        del sys.modules[_SDK]

__all__ = ["redis"]
