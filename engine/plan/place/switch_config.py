"""The imported leaf switches, and whether a job can have switch affinity.

Source: component/ascend-for-volcano/plugin/tor.go and internal/nslb/frame.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from belay.engine.model.cluster import Observed
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic, ObjectKey
from belay.engine.model.job_options import JobOptions
from belay.engine.model.labels import TOR_AFFINITY
from belay.engine.model.pending_reasons import INVALID_REQUEST
from belay.engine.model.plan_cache import CacheKey, Memo, PlanCache
from belay.engine.model.switches import Switches
from belay.engine.plan.place.causes import UnknownLabel
from belay.engine.plan.place.handler import Refusal
from belay.engine.wire import switches as wire
from belay.engine.wire.errors import WireError

#: Values of the label: jobs that fill whole switches where they can, and all others.
LARGE: Final = "large-model-schema"
NORMAL: Final = "normal-schema"
SCHEMAS: Final = (LARGE, NORMAL)
#: ``SchedulerJob.topology`` of jobs with switch affinity.
RULE: Final = "switch"
#: The reason of jobs whose switches are not imported or cannot be used.
UNKNOWN: Final = "SwitchTopologyUnknown"
CONFIG: Final = ObjectKey("v1", "ConfigMap", wire.NAMESPACE, wire.NAME)
_UNUSABLE: Final = f"job tor affinity check failed, cluster {wire.NAME} cannot be used: "


class UnusableConfig(NamedTuple):
    """A field of the imported switches that cannot be used, and why."""

    field: str
    problem: str


_READ: Final = CacheKey("imported switches", Memo[Switches | UnusableConfig], limit=8)


def read(observed: Observed, cache: PlanCache) -> Switches | Refusal:
    """The imported switches, or why a job that wants them must wait."""
    found = _imported(observed, cache)
    if found is None:
        return Refusal(UNKNOWN, f"job tor affinity check failed, cluster {wire.NAME} is not imported")
    if isinstance(found, UnusableConfig):
        return Refusal(UNKNOWN, f"{_UNUSABLE}{found.field}: {found.problem}")
    return found


def findings(observed: Observed, cache: PlanCache) -> list[Diagnostic]:
    """Diagnostics of the imported switches themselves."""
    found = _imported(observed, cache)
    if found is None:
        return []
    if isinstance(found, UnusableConfig):
        return [Diagnostic("error", str(CONFIG), "", 0, 0, found.field, found.problem, PassCode.UNREADABLE)]

    known = {node.internal_ip for node in observed.nodes.values()}
    lost = [s.address for switch in found.switches for s in switch.servers if s.address not in known]
    if not lost:
        return []
    shown = ", ".join(sorted(lost)[:5]) + (" …" if len(lost) > 5 else "")
    text = f"{len(lost)} servers have the InternalIP of no node: {shown}; nothing is placed there"
    return [Diagnostic("info", str(CONFIG), "", 0, 0, f"data.{wire.INFO}", text, PassCode.UNKNOWN_SERVERS)]


def _imported(observed: Observed, cache: PlanCache) -> Switches | UnusableConfig | None:
    """The imported switches, or what of them cannot be used; None where none are imported."""
    raw = observed.objects.get(CONFIG)
    return cache[_READ].of("switches", raw, lambda: _parse(raw)) if raw is not None else None


def _parse(raw: Mapping[str, object]) -> Switches | UnusableConfig:
    try:
        return wire.parse(raw)
    except WireError as error:
        return UnusableConfig(error.field, error.message)


def check(options: JobOptions, observed: Observed, cache: PlanCache) -> Refusal | None:
    """Why a job with these options cannot have switch affinity; None when it can, or asks for none."""
    schema = options.switch_affinity
    if schema == "null":
        return None
    if schema not in SCHEMAS:
        text = f"job tor affinity label check failed,tor-affinity label value is {schema}"
        return Refusal(INVALID_REQUEST, text, UnknownLabel(TOR_AFFINITY, schema, SCHEMAS))
    found = read(observed, cache)
    return found if isinstance(found, Refusal) else None


def requested(options: JobOptions) -> bool:
    """Whether a job asks for switch affinity."""
    return options.switch_affinity in SCHEMAS
