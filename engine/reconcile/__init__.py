"""The loop: from a trigger to writes and status. ``loop.py`` is the prose, the other files are its nouns."""

from __future__ import annotations

from engine.reconcile.loop import reconcile
from engine.reconcile.shard import Shard
from engine.reconcile.worker import TASK_SECONDS, Worker

__all__ = ["TASK_SECONDS", "Shard", "Worker", "reconcile"]
