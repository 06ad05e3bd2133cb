"""The status ConfigMaps on which the Headlamp plugin is tested, written by the engine itself.

``python -m tests.headlamp_status`` writes them to console/headlamp; tests/test_headlamp.py fails when they are old.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from belay.engine.load import load
from belay.engine.model.diagnostics import Diagnostic
from belay.engine.model.freshness import READY
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from belay.engine.status import memory_bodies, status_bodies
from belay.engine.status.conditions import StatusCondition
from belay.engine.status.sync_status import SyncState
from tests.bench.clusters import NOW
from tests.console_clusters import large

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "console/headlamp/src/recorded.json"
READ = ("belay-sync", "belay-pool-", "belay-job-")
"""Beginnings of the names that the plugin reads."""
ISOLATION = b"""\
apiVersion: belay.dev/v1alpha1
kind: Isolation
metadata: {name: node-9}
spec: {nodes: [node-00009], reason: 'new fan, ticket 4711', until: '2100-01-01T00:00:00Z'}
"""


def status_maps() -> list[dict[str, Any]]:
    """What a pass over ten nodes writes: a faulty chip, a node out by hand, jobs that run, one that waits."""
    desired = load({"desired/isolations.yaml": ISOLATION}).desired
    observed = observe(large(10, jobs=4))
    finding = Diagnostic("warning", "AscendJob/train/x", "desired/x.yaml", 3, 5, "spec", "unknown field 'replica'")
    ready = StatusCondition(READY, "True", "Everything", "all of it is in force")
    sync = SyncState(attempted="a" * 40, applied="a" * 40, diagnostics=(finding,), conditions=(ready,))
    result = plan(desired, observed, NOW)
    bodies = [
        *status_bodies(result, observed, sync, None, desired),
        *memory_bodies(result, observed, desired=desired),
    ]
    return [one for one in bodies if str(one["metadata"]["name"]).startswith(READ)]


def recorded() -> str:
    """The text of the file."""
    maps = [{"metadata": {"name": one["metadata"]["name"]}, "data": one["data"]} for one in status_maps()]
    maps.sort(key=lambda one: str(one["metadata"]["name"]))
    return json.dumps(maps, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(recorded())
