"""`belay drain --by`: whether nodes are empty by a time, as the simulation of the change says."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from belay.engine.cli.ages import length
from belay.engine.cli.forecast import Forecast, forecast
from belay.engine.cli.inputs import LIVE, cluster_items
from belay.engine.cli.staying import ADD_LABEL, unlabelled
from belay.engine.errors import BelayError, InputError
from belay.engine.gangs.grouping import group
from belay.engine.kube.credentials import names_cluster
from belay.engine.model.actions import EvictPod
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.plan import Plan
from belay.engine.model.times import rfc3339
from belay.engine.model.wording import counted
from belay.engine.replay.offline import plan_offline

_SHOWN: Final = 5
_UNDECIDED: Final = "a person decides"
_UNFORESEEN: Final = "nothing in the simulation moves it"


class DrainedPod(NamedTuple):
    """A pod that holds chips of a node; when it has ended at the latest (Unix seconds), None: not foreseeably.

    ``unlabelled``: its job's labels keep it where it is, whenever the drain begins.
    """

    pod: str
    node: str
    chips: int
    end: float | None
    why: str
    unlabelled: bool = False


def promise(
    after: Mapping[str, bytes], nodes: Sequence[str], deadline: float, cluster: str | None, kubeconfig: str | None
) -> str:
    """The sentence that nodes are empty by a time.

    Raises:
        InputError: running work cannot have left by then; it says which, and when.
    """
    rows, now = _drained(after, nodes, cluster, kubeconfig)
    if rows is None:
        raise InputError(
            "it cannot be foretold when they are empty: no node has a device report", where=", ".join(nodes),
            hint="Leave --by out",
        )  # fmt: skip
    return sentence(rows, nodes, deadline, now)


def finish(after: Mapping[str, bytes], nodes: Sequence[str], cluster: str | None, kubeconfig: str | None) -> str:
    """When nodes are empty, or that it is not known and why; empty where no cluster could be asked."""
    if cluster is None and not names_cluster(kubeconfig):
        return ""
    try:
        rows, now = _drained(after, nodes, cluster, kubeconfig)
    except BelayError:
        return ""  # the plan above says that it was not made, and why
    where = ", ".join(nodes)
    if rows is None:
        return f"when {where} will be empty is not known: no node has a device report"

    staying = [row for row in rows if row.end is None]
    if staying:
        shown = "; ".join(f"{row.pod} stays on {row.node}: {row.why or _UNFORESEEN}" for row in staying[:_SHOWN])
        more = f"; and {len(staying) - _SHOWN} more" if len(staying) > _SHOWN else ""
        return f"when {where} will be empty is not known: {shown}{more}"
    verb = "is" if len(nodes) == 1 else "are"
    if not rows:
        return f"{where} {verb} empty already, and no new pod comes once this is in force"
    last = max(row.end for row in rows if row.end is not None)
    chips = sum(row.chips for row in rows)
    return (
        f"{where} {verb} empty by {rfc3339(round(last))} (in {length(last - now)}, grace times included): "
        f"{counted(len(rows), 'pod')} with {counted(chips, 'chip')} {'leaves' if len(rows) == 1 else 'leave'}"
    )


def _drained(
    after: Mapping[str, bytes], nodes: Sequence[str], cluster: str | None, kubeconfig: str | None
) -> tuple[list[DrainedPod] | None, float]:
    """The pods that hold chips of the nodes, and the time of the plan; None where nothing can be simulated."""
    items, clock, now = cluster_items(cluster or LIVE, None, kubeconfig)
    with tempfile.TemporaryDirectory(prefix="belay-drain-") as folder:
        for path, data in after.items():
            place = Path(folder) / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        plan, observed, desired = plan_offline(
            items, tree=folder, overlays=(), now=now, clock=clock or time.time(), live=cluster in (None, LIVE)
        )
        played = forecast(plan, desired, items)
    if played is None:
        return None, plan.now
    holding = [pod for pod in observed.pods.values() if pod.node in nodes and pod.holds_chips and pod.chips]
    return departures(holding, plan, played, observed), plan.now


def departures(holding: Sequence[Pod], plan: Plan, played: Forecast, observed: Observed) -> list[DrainedPod]:
    """When each of these pods has ended, its grace time included."""
    begins: dict[str, float] = {}
    for one in played.evicted:
        begins.setdefault(f"{one.namespace}/{one.pod}", plan.now + one.after)
    held = {
        f"{row.action.namespace}/{row.action.pod}": f"{row.budget} holds it back until {row.until or _UNDECIDED}"
        for row in plan.deferred
        if isinstance(row.action, EvictPod)
    }
    gangs, gang_of = group(observed)
    found = []
    for pod in sorted(holding, key=lambda pod: pod.key):
        end = begins[pod.key] + pod.grace_seconds if pod.key in begins else pod.deleting
        gang = gangs.get(gang_of.get(pod.key, ""))
        label = unlabelled(gang) if gang is not None and pod.owner_kind and end is None else ""
        why = held.get(pod.key) or (f"its job {label}" if label else "")
        found.append(DrainedPod(pod.key, pod.node, len(pod.chips), end, why, bool(label)))
    return found


def sentence(rows: Sequence[DrainedPod], nodes: Sequence[str], deadline: float, now: float) -> str:
    """The promise in words. Raises InputError where it cannot be given."""
    where, by = ", ".join(nodes), rfc3339(deadline)
    late = [row for row in rows if row.end is None or row.end > deadline]
    if late:
        chips = sum(row.chips for row in late)
        shown = "; ".join(_late(row, deadline) for row in late[:_SHOWN])
        more = f"; and {len(late) - _SHOWN} more" if len(late) > _SHOWN else ""
        raise InputError(
            f"{counted(len(late), 'pod')} with {counted(chips, 'chip')} cannot have left by {by}: {shown}{more}",
            where=where, hint=_way_out(late),
        )  # fmt: skip
    if not rows:
        return f"by {by}: {where} is empty already, and no new pod comes onto it once this is in force"
    last = max(row.end for row in rows if row.end is not None)
    chips = sum(row.chips for row in rows)
    minutes = max(0.0, last - now) / 60
    verb = "leaves" if len(rows) == 1 else "leave"
    return (
        f"by {by}: {counted(len(rows), 'pod')} with {counted(chips, 'chip')} {verb} {where}, the last at "
        f"{rfc3339(last)} (in {minutes:.0f} min, its grace time included); no new pod comes once this is in force"
    )


def _way_out(late: Sequence[DrainedPod]) -> str:
    ends = [row.end for row in late if row.end is not None]
    if len(ends) == len(late):
        return f"Give --by {rfc3339(max(ends) + 60)} or later"
    if any(row.unlabelled for row in late):
        return f"To have it moved, {ADD_LABEL}; it stays without --by as well"
    return "Leave --by out to begin now"


def _late(row: DrainedPod, deadline: float) -> str:
    why = f" ({row.why})" if row.why else ""
    if row.end is None:
        return f"{row.pod} does not move from {row.node}{why}"
    return f"{row.pod} ends {(row.end - deadline) / 60:.0f} min later{why}"
