"""The pass that turns jobs into pods, services, PodGroups and rank tables, and keeps their status.

Deployments, StatefulSets and Jobs get their pods from Kubernetes; here they only get rank tables.
"""

from __future__ import annotations

from engine.plan import ascendjob, hotswitch, ranktables, volcanojob
from engine.plan.lifecycle import Bench, forget_gone
from engine.plan.scope import Scope


def run(scope: Scope) -> None:
    """Expands the jobs of the snapshot; what ``sync`` creates in this pass is expanded in the next."""
    bench = Bench.of(scope)
    if bench.holds("expand_ascend_job"):
        ascendjob.run(bench)
        hotswitch.run(bench)
        forget_gone(bench, ascendjob.KIND, ascendjob.API)
    if bench.holds("expand_volcano_job"):
        volcanojob.run(bench)
        forget_gone(bench, volcanojob.KIND, volcanojob.API)
    ranktables.run(bench)
