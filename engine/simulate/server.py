"""One simulated server: chip faults, the agent's journal of epochs, vNPUs, and reports."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from belay.engine.model.chip_masks import ids_of
from belay.engine.model.cluster import AgentChip, AgentReport, AgentVNPU, DeviceReport, Node, ResetOrder
from belay.engine.model.faults import CARD, NETWORK, PUBLIC, moment
from belay.engine.model.levels import (
    IN_SERVICE,
    NOT_HANDLE,
    PRE_SEPARATE,
    SEPARATE,
    SWITCH_LEVELS,
    NodeStatus,
    SwitchLevel,
    known,
    switch_status,
    worst,
)
from belay.engine.wire import deviceinfo

Codes = dict[int, dict[str, tuple[int, str]]]
"""chip → code → (raised at, Unix ms; level)."""


class SimulatedServer:
    """One node's hardware and its agent. ``resource`` as ``huawei.com/Ascend910``, ``prefix`` as ``Ascend910-``.

    ``faults`` are of the chip plane, ``network`` of the parameter plane, ``public`` are public faults; ``listed`` are
    chips that the report lists as unhealthy without a code. ``hardware`` is the level of NodeD's report (empty: none),
    ``switch`` that of the switch; ``alarms`` (device, its number, code) and ``switch_faults`` (code, chip, port) are
    the codes behind them if a timeline names codes. ``silent``: the node neither reports nor reads orders; ``gone``:
    the Node object is deleted. ``done`` and ``results`` are the agent's journal: per chip the newest epoch and its
    result; ``boot`` and ``seq`` its run and its last report in it. ``reset_fails``: number of next resets that fail.
    ``serials``: serial numbers that the agent reported;
    ``reset_groups``: the chips that reset together, empty where it does not say.
    """

    def __init__(
        self, name: str, *, chips: int | Iterable[int] = 8, kind: str = "Ascend910", labels: Mapping[str, str]
    ) -> None:
        self.name = name
        self.ids: tuple[int, ...] = tuple(range(chips)) if isinstance(chips, int) else tuple(sorted(chips))
        self.chips = len(self.ids)
        self.prefix = f"{kind}-"
        self.resource = f"huawei.com/{kind}"
        self.labels = dict(labels)
        self.faults: Codes = {}
        self.network: Codes = {}
        self.public: Codes = {}
        self.listed: set[int] = set()
        self.manual: set[int] = set()
        self.hardware = ""
        self.switch = ""
        self.switch_codes: tuple[str, ...] = ("[0x1,1,na,na]",)
        self.alarms: list[tuple[str, int, str]] = []
        self.switch_faults: list[tuple[str, int, int]] = []
        self.super_pod = (-2, -2, -1)
        self.gone = False
        self.ready = True
        self.silent = False
        self.done: dict[int, int] = {}
        self.results: dict[int, str] = {}
        self.reset_log: list[tuple[int, tuple[int, ...]]] = []
        self.reset_times: list[float] = []
        self.reset_fails = 0
        self.vnpus: list[AgentVNPU] = []
        self.vnpu_done = 0
        self.orders_seen = 0
        self.boot, self.seq = "b", 0
        self.serials: dict[int, str] = {}
        self.reported: float = 0.0
        self.reset_groups: tuple[tuple[int, ...], ...] = ()

    @staticmethod
    def of(node: Node, report: DeviceReport, agent: AgentReport | None) -> SimulatedServer:
        """The server of a node and its report; its agent continues from its last report."""
        server = SimulatedServer(node.name, chips=ids_of(node.base_chips or report.listed), labels=node.labels)
        server.ready, server.silent = node.ready, not node.ready
        server.prefix, server.resource = report.prefix, report.resource
        planes = {CARD: server.faults, NETWORK: server.network, PUBLIC: server.public}
        now_ms = round(report.update_time * 1000)
        for fault in report.faults:
            if fault.chip >= 0 and fault.code:
                level = fault.level or SEPARATE
                planes[fault.kind].setdefault(fault.chip, {})[fault.code] = (moment(fault.time_ms, now_ms), level)
        coded = {chip for plane in (server.faults, server.public) for chip in plane}
        server.listed = set(ids_of(report.unhealthy)) - coded
        server.manual = set(ids_of(report.manual))
        if report.switch is not None:
            server.switch, server.switch_codes = report.switch.level, report.switch.codes
        server.super_pod = (report.super_pod_id, report.server_index, report.rack_id)
        server.reported = report.update_time
        if agent is not None:
            server.done = {c: row.reset_epoch_done for c, row in agent.chips.items() if row.reset_epoch_done}
            server.results = {c: row.reset_result for c, row in agent.chips.items() if row.reset_result}
            server.vnpus, server.vnpu_done = list(agent.vnpus), agent.vnpu_epoch_done
            server.orders_seen = agent.orders_seen
            server.boot, server.seq = agent.boot, agent.seq
            server.serials = {c: row.serial for c, row in agent.chips.items()}
            server.reset_groups = agent.reset_groups
        return server

    def device_name(self, chip: int) -> str:
        """The chip's name in reports, such as ``Ascend910-4``."""
        return f"{self.prefix}{chip}"

    def plane(self, kind: str) -> Codes:
        """The codes of a fault type: ``CardUnhealthy``, ``CardNetworkUnhealthy`` or ``PublicFault``."""
        return self.network if kind == NETWORK else self.public if kind == PUBLIC else self.faults

    def reset(self, order: ResetOrder, busy: Collection[int], now: float) -> str:
        """Carry out a reset as an agent does: once per epoch, never on a chip in use; returns the result."""
        if busy:
            result = "refused: in use"
        elif self.reset_fails:
            self.reset_fails -= 1
            result = "failed: the chip did not boot"
        else:
            result = "ok"
            self.reset_log.append((order.epoch, order.group))
            self.reset_times.append(now)
            for chip in order.group:
                self.faults.pop(chip, None)
                self.listed.discard(chip)
        for chip in order.group:
            self.done[chip], self.results[chip] = order.epoch, result
        return result

    def partition(self, epoch: int, layout: Mapping[int, tuple[str, ...]]) -> None:
        """Partition the chips as ordered; vNPUs in use stay."""
        kept = [v for v in self.vnpus if v.used_by or v.chip not in layout]
        number = 100
        for chip, templates in sorted(layout.items()):
            have = [v.template for v in kept if v.chip == chip]
            for template in templates:
                if template in have:
                    have.remove(template)
                    continue
                while any(v.id == number for v in kept):
                    number += 1
                kept.append(AgentVNPU(number, chip, template, ""))
        self.vnpus, self.vnpu_done = kept, epoch

    def devices(self, suffixes: Mapping[str, str]) -> dict[str, int]:
        """How many devices of each resource there are: chips without vNPUs, and vNPUs by template."""
        cut = {vnpu.chip for vnpu in self.vnpus}
        counts = {self.resource: sum(chip not in cut for chip in self.ids)}
        for vnpu in self.vnpus:
            if vnpu.template in suffixes:
                name = f"{self.resource}-{suffixes[vnpu.template]}"
                counts[name] = counts.get(name, 0) + 1
        return counts

    def device_report(self, taken: Collection[str], now: float) -> dict[str, Any]:
        """``mindx-dl-deviceinfo-<node>`` as a device plugin writes it; ``taken`` are names of chips in use."""
        lists: dict[str, list[int]] = {"": [], "-Unhealthy": [], "-NetworkUnhealthy": [], "-Recovering": []}
        elements = []
        cut = {vnpu.chip for vnpu in self.vnpus}  # a plugin lists the vNPUs of such a chip in its place
        for chip in self.ids:
            name, used = self.device_name(chip), self.device_name(chip) in taken
            own = {**self.faults.get(chip, {}), **self.public.get(chip, {})}
            level = worst(*(level for _, level in own.values())) if own else ""
            bad = chip in self.listed or (bool(own) and known(level) not in IN_SERVICE)
            if bad and not (known(level) == PRE_SEPARATE and used):
                lists["-Unhealthy"].append(chip)
            elif not used and chip not in cut:
                lists[""].append(chip)
            for kind in (CARD, PUBLIC, NETWORK):
                codes = self.plane(kind).get(chip)
                if codes:
                    worst_level = worst(*(at for _, at in codes.values()))
                    elements.append(deviceinfo.fault_element(kind, name, codes, worst_level))
                    if kind == NETWORK and worst_level != NOT_HANDLE:
                        lists["-NetworkUnhealthy"].append(chip)
        device_list = {f"{self.resource}{k}": ",".join(self.device_name(c) for c in v) for k, v in lists.items()}
        device_list[deviceinfo.fault_key(self.resource)] = json.dumps(elements, separators=(",", ":"))
        status = switch_status(SwitchLevel(self.switch)) if self.switch in SWITCH_LEVELS else NodeStatus.UNHEALTHY
        switch = {
            "FaultCode": list(self.switch_codes),
            "FaultLevel": self.switch,
            "UpdateTime": int(now),
            "NodeStatus": status,
        }
        return deviceinfo.build(
            self.name,
            device_list=device_list,
            update_time=int(now),
            super_pod_id=self.super_pod[0],
            server_index=self.super_pod[1],
            rack_id=self.super_pod[2] if self.super_pod[2] >= 0 else None,
            manual=[self.device_name(c) for c in sorted(self.manual)],
            switch=switch if self.switch else None,
        )

    def agent_report(self, taken: Collection[str], now: float) -> AgentReport:
        """``belay-report-<node>``, the next of this run: executed orders, and chips with processes."""
        self.seq += 1
        return AgentReport(
            node=self.name,
            boot=self.boot,
            seq=self.seq,
            time_ms=int(now * 1000),
            orders_seen=self.orders_seen,
            chips={
                c: AgentChip(
                    serial=self.serials.get(c, f"S-{self.name}-{c}"),
                    processes=1 if self.device_name(c) in taken else 0,
                    idle_since_ms=None if self.device_name(c) in taken else int(now * 1000) - 120_000,
                    reset_epoch_done=self.done.get(c, 0),
                    reset_result=self.results.get(c, ""),
                )
                for c in self.ids
            },
            vnpu_epoch_done=self.vnpu_done,
            vnpu_result="ok" if self.vnpu_done else "",
            vnpus=tuple(self.vnpus),
            errors=(),
            reset_groups=self.reset_groups,
        )
