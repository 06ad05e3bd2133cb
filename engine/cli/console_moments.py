"""The moments that the console asks about: a live cluster, a recorded pass, or a file; each planned as the verbs do."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from belay.engine.documents import Desired
from belay.engine.errors import InputError
from belay.engine.model.cluster import Observed
from belay.engine.model.diagnostics import Diagnostic
from belay.engine.model.plan import Plan
from belay.engine.model.times import rfc3339
from belay.engine.wire.names import MAIN_SHARD

LIVE_SECONDS: Final = 5.0
"""Seconds for which a reading of a live cluster counts as the present one."""


class MomentSource(msgspec.Struct, frozen=True, rename="camel"):
    """Where a moment comes from: ``live`` (with a kubeconfig, or the usual one, and a context of it), ``recording`` or
    ``cluster`` (files). ``shard``: which shard of a live cluster is planned.

    ``desired`` and ``policies`` are folders as in `belay plan`; ``identity`` is the moment's id.
    """

    kind: str
    path: str = ""
    kubeconfig: str = ""
    context: str = ""
    shard: str = MAIN_SHARD
    identity: str = ""
    desired: str = ""
    policies: tuple[str, ...] = ()


class AskedMoment(msgspec.Struct, frozen=True):
    """A moment as it was planned: the raw objects, the plan and what it was made from."""

    items: list[dict[str, Any]]
    plan: Plan
    observed: Observed
    desired: Desired
    findings: tuple[Diagnostic, ...]
    shard: str
    live: bool
    identity: str


class Moments:
    """Keeps the moment that was asked about last: the next question is mostly about the same."""

    def __init__(self) -> None:
        self._kept: tuple[MomentSource, float, AskedMoment] | None = None

    def read(self, source: MomentSource) -> AskedMoment:
        """The moment.

        Raises:
            BelayError: it cannot be read.
        """
        if self._kept is not None and self._kept[0] == source:
            _, at, kept = self._kept
            if source.kind != "live" or time.monotonic() - at < LIVE_SECONDS:
                return kept
        self._kept = None  # before the next is read: two large ones need not fit
        found = _read(source)
        self._kept = (source, time.monotonic(), found)
        return found


def about(moment: AskedMoment, name: str) -> Plan:
    """The moment's plan, with more effort to find a way out for one job or pod."""
    from belay.engine.plan import plan

    return plan(moment.desired, moment.observed, moment.plan.now, shard=moment.shard, about=name)


def _read(source: MomentSource) -> AskedMoment:
    if source.kind == "recording":
        return _recorded(source)
    from belay.engine.replay.offline import plan_offline

    tree, overlays = source.desired or None, source.policies
    if source.kind == "cluster":
        from belay.engine.replay.cluster_file import read_cluster

        items = read_cluster(source.path)
        plan, observed, desired = plan_offline(items, tree=tree, overlays=overlays, clock=time.time())
    elif source.kind == "live":
        from belay.engine.observe.live import read_live

        items, clock = read_live(source.kubeconfig or None, source.context or None), time.time()
        now, shard = rfc3339(clock), source.shard or MAIN_SHARD
        plan, observed, desired = plan_offline(
            items, tree=tree, overlays=overlays, now=now, clock=clock, live=True, shard=shard
        )
    else:
        raise InputError(f"{source.kind[:40]!r} is not a source")
    live = source.kind == "live"
    shard = source.shard if live else MAIN_SHARD
    return AskedMoment(items, plan, observed, desired, (), shard, live, source.identity)


def _recorded(source: MomentSource) -> AskedMoment:
    from belay.engine.observe.observed import observe
    from belay.engine.plan import plan
    from belay.engine.replay.offline import policies_of
    from belay.engine.replay.recording import declared, read

    recording = read(Path(source.path))
    overlays: list[Mapping[str, bytes]] = [policies_of(folder) for folder in source.policies]
    loaded = declared(recording, overlays)
    observed = loaded.desired.reading(observe(recording.objects, recording.shard))
    result = plan(loaded.desired, observed, recording.now, shard=recording.shard)
    return AskedMoment(
        recording.objects, result, observed, loaded.desired, loaded.diagnostics, recording.shard, True,
        source.identity,
    )  # fmt: skip
