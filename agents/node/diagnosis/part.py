"""Watches the pods of a node for failures, reads their logs once each, and reports what rules find.

A pod with chips is looked at when it fails, when a container of it ends with an error, and when it is deleted: then
another pod of its job may have failed, and that this one waited or did not is part of the answer.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from belay.agents.common.client import ApiError, ApiServer
from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.node.diagnosis.archive import LogArchive
from belay.agents.node.diagnosis.files import ROOTS, cut, logs_of
from belay.agents.node.diagnosis.matching import Findings
from belay.agents.node.diagnosis.rules import shipped_rules
from belay.agents.node.publisher import Publisher
from belay.agents.node.state import NodeState
from belay.engine.model.cluster import Pod
from belay.engine.model.labels import GROUP_NAME, POD_TEMPLATE_HASH, RANK_INDEX, VOLCANO_GROUP_NAME
from belay.engine.model.log_evidence import MAX_PODS, LogRule, PodEvidence
from belay.engine.model.unstructured import nested_map
from belay.engine.wire import evidence as wire
from belay.engine.wire.errors import WireError
from belay.engine.wire.names import NODES, SYSTEM

#: Seconds between two looks at the pods, and from a failure to the reading: processes write their last lines.
PERIOD: Final = 2.0
SETTLE: Final = 1.0
#: Lines older than this before the failure do not count: HCCL waits half an hour, some jobs two.
WINDOW_MS: Final = 3 * 3_600_000
RESEND: Final = 3600.0
_REMEMBERED: Final = 4096
_log = Log("diagnosis")


class DiagnosisSettings(NamedTuple):
    """``roots``: folders of the host whose logs may be read; ``addresses``: also hide IP addresses."""

    roots: tuple[Path, ...] = ROOTS
    addresses: bool = False


class DiagnosisPart:
    """Runs beside the agent until cancelled. ``state`` is the agent's view of its node, None before its first look."""

    def __init__(
        self,
        node: str,
        cluster: ApiServer,
        state: Callable[[], NodeState | None],
        folder: Path,
        settings: DiagnosisSettings,
        clock: Clock | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self._node, self._cluster, self._state, self._settings = node, cluster, state, settings
        self._clock = clock or Clock()
        self._archive = LogArchive(folder / "logs", addresses=settings.addresses)
        self._seen: deque[tuple[str, str]] = deque(maxlen=_REMEMBERED)
        self._pods: list[PodEvidence] | None = None
        self._shipped = shipped_rules()
        self._publisher = Publisher(
            f"evidence of {node}",
            build=lambda: wire.build(self._node, self._pods or ()),
            write=cluster.put_config_map,
            period=lambda: RESEND,
            spacing=2.0,
            clock=self._clock,
            chance=chance or random.Random(),
        )

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            publishing: asyncio.Task[None] | None = None
            while True:
                if await self.look() and publishing is None:
                    publishing = group.create_task(self._publisher.run())
                await self._clock.pause(PERIOD)

    async def look(self) -> bool:
        """Read the logs of pods that have failed since the last look; returns whether there is anything to report."""
        state = self._state()
        due = self._due(state) if state is not None and state.pods_read else []
        if due:
            if self._pods is None:
                self._pods = await self._known()
            await self._clock.sleep(SETTLE)
            rules = await self._rules()
            for body, pod, why in due:
                found = await asyncio.to_thread(self._collect, body, pod, why, rules)
                self._pods = [found, *(one for one in self._pods if one.uid != found.uid)][:MAX_PODS]
            self._publisher.update(tuple((one.uid, one.collected_ms) for one in self._pods))
        return bool(self._pods)

    def _due(self, state: NodeState) -> list[tuple[Mapping[str, Any], Pod, str]]:
        pods = {pod.uid: pod for pod in state.pods}
        due = []
        for body in state.bodies:
            pod = pods.get(str(nested_map(body, "metadata").get("uid") or ""))
            if pod is None or not (pod.chips or pod.count):
                continue
            for why in failures(body):
                mark = (pod.uid, why)
                # a pod that failed is deleted afterwards, which says nothing new
                if mark not in self._seen and not (why == DELETED and any(uid == pod.uid for uid, _ in self._seen)):
                    due.append((body, pod, why))
                self._remember(mark)
        unique: dict[str, tuple[Mapping[str, Any], Pod, str]] = {}
        for row in due:
            unique.setdefault(row[1].uid, row)
        return list(unique.values())

    def _remember(self, mark: tuple[str, str]) -> None:
        if mark not in self._seen:
            self._seen.append(mark)

    async def _known(self) -> list[PodEvidence]:
        """What an earlier process of this agent reported."""
        try:
            body = await self._cluster.get_config_map(NODES, wire.PREFIX + self._node)
            return list(wire.parse(body)[1]) if body is not None else []
        except (ApiError, WireError) as error:
            _log.warning("earlier evidence cannot be read, it is replaced", node=self._node, error=error)
            return []

    async def _rules(self) -> tuple[LogRule, ...]:
        """The rules of the repository before the shipped ones; these alone while the others cannot be read."""
        try:
            body = await self._cluster.get_config_map(SYSTEM, wire.RULES)
            own = wire.parse_rules(body) if body is not None else ()
        except (ApiError, WireError) as error:
            _log.warning("rules of the repository cannot be read, the shipped ones apply", node=self._node, error=error)
            own = ()
        codes = {rule.code for rule in own}
        return (*own, *(rule for rule in self._shipped if rule.code not in codes))

    def _collect(self, body: Mapping[str, Any], pod: Pod, why: str, rules: Sequence[LogRule]) -> PodEvidence:
        """Read and match the logs of one pod, and keep their redacted end; runs in a thread."""
        now_ms = self._clock.now_ms()
        since_ms = max(now_ms - WINDOW_MS, int(pod.created * 1000))
        findings = Findings(rules, since_ms, addresses=self._settings.addresses)
        files = 0

        def reading() -> Any:
            nonlocal files
            for log in logs_of(body, self._settings.roots, since_ms / 1000):
                files += 1
                findings.read(log)
                yield log

        logs = reading()
        try:
            self._archive.keep(f"{pod.namespace}.{pod.name}", now_ms, logs)
        except OSError as error:
            _log.warning("logs cannot be kept", pod=pod.key, error=error)
        for _ in logs:  # the archive may be full before the last log
            pass
        _log.info("logs of a failed pod read", pod=pod.key, why=why, files=files, events=len(findings.events()))
        return describe(
            body, pod, self._node, why, now_ms, findings, files, cut(body, self._settings.roots, since_ms / 1000)
        )


DELETED: Final = "deleted"


def failures(body: Mapping[str, Any]) -> list[str]:
    """Why a pod's logs matter now, each once: ``failed``, ``<container> ended <n>`` for each end with an error, and
    ``deleted``."""
    status, found = nested_map(body, "status"), []
    if status.get("phase") == "Failed":
        found.append("failed")
    rows = status.get("containerStatuses")
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, dict):
            continue
        for field in ("state", "lastState"):
            ended = nested_map(nested_map(row, field), "terminated")
            if ended.get("exitCode") not in (None, 0):
                restarts = int(row.get("restartCount") or 0)
                found.append(f"{str(row.get('name'))[:63]} ended {restarts if field == 'state' else restarts - 1}")
    if nested_map(body, "metadata").get("deletionTimestamp") and status.get("phase") == "Running":
        found.append(DELETED)
    return found


def describe(
    body: Mapping[str, Any], pod: Pod, node: str, why: str, now_ms: int, findings: Findings, files: int, is_cut: bool
) -> PodEvidence:
    """The evidence of one pod, with what its job can be found by."""
    text = pod.annotations.get(RANK_INDEX, "")
    rank = int(text) if text.isascii() and text.isdecimal() and len(text) <= 7 else pod.task_index
    numbers = (chip.rpartition("-")[2] for chip in pod.chips)
    chips = tuple(int(number) for number in numbers if number.isascii() and number.isdecimal() and len(number) <= 4)
    group = next((pod.annotations[key] for key in _GROUP_KEYS if pod.annotations.get(key)), "")
    return PodEvidence(
        namespace=pod.namespace, pod=pod.name, uid=pod.uid, node=node, api_version=pod.owner_api, kind=pod.owner_kind,
        owner=pod.owner_name, group=group, template_hash=pod.labels.get(POD_TEMPLATE_HASH, "")[:63],
        host_ip=pod.host_ip, pod_rank=-1 if rank is None else rank, chips=chips, ranks=findings.ranks,
        world=findings.world, collected_ms=now_ms, why=why, files=files, cut=is_cut, events=findings.events(),
    )  # fmt: skip


_GROUP_KEYS: Final = (GROUP_NAME, VOLCANO_GROUP_NAME)
