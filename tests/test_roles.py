"""Which roles Belay plays beside live components."""

from __future__ import annotations

import pytest

from belay.engine.load import load
from belay.engine.plan import plan
from belay.engine.plan.roles import resolve_roles
from belay.engine.replay.offline import every_role
from tests import worlds

SETTINGS = b"""\
apiVersion: belay.dev/v1alpha1
kind: SchedulingSettings
metadata: {name: default}
spec: {roles: {schedule: %s}}
"""


def settings(schedule: str):  # type: ignore[no-untyped-def]
    return load({"policies/scheduling.yaml": SETTINGS % schedule.encode()}, has_git=False).desired


def cluster(*, volcano: bool):  # type: ignore[no-untyped-def]
    pods = [worlds.pod("p-0", count=8)]
    if volcano:
        pods.append(
            worlds.pod("volcano-1", namespace="volcano-system", count=0, labels={"app": "volcano-scheduler"},
                       phase="Running", node="n0")
        )  # fmt: skip
    return worlds.world(1, pods=pods)


@pytest.mark.parametrize(
    ("setting", "volcano", "ours"),
    [("auto", False, True), ("auto", True, False), ("on", True, True), ("off", False, False)],
)
def test_a_role_is_taken_only_where_no_live_component_holds_it(setting: str, volcano: bool, ours: bool) -> None:
    desired, observed = settings(setting), cluster(volcano=volcano)
    roles = resolve_roles(desired, observed)
    assert (roles["schedule"] == "on") is ours
    if setting == "auto" and volcano:
        assert roles["schedule"] == "off: volcano-system/volcano-1 runs"
    bound = [a for a in plan(desired, observed, worlds.NOW).actions if type(a).__name__ == "BindPod"]
    assert bool(bound) is ours


def test_a_plan_without_a_cluster_plays_every_role() -> None:
    roles = resolve_roles(every_role(settings("off")), cluster(volcano=True))
    assert set(roles.values()) == {"on"}
