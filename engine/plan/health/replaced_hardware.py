"""What is remembered of chips is about hardware: another server under the name, or another chip, begins without it.

A chip is the same while its serial number is. Where no agent reports it, the server decides by its system UUID, which
kubelet reports. Where neither is known on both sides, the memory stays: a Node that is only deleted and registered
again must shed no hold.
"""

from __future__ import annotations

from typing import Final

import msgspec

from belay.engine.model.cluster import AgentReport, Node
from belay.engine.model.history import TIMELINE, ChipMemory, HoldKind, KnownHardware, NodeMemory
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts

_EMPTY: Final = NodeMemory()
_UNKNOWN: Final = KnownHardware()


def forget_replaced(facts: Facts, draft: Draft) -> None:
    """Forget what was remembered of hardware that is gone, and remember which hardware the rest is about."""
    for name, memory in list(draft.memory.nodes.items()):
        node = facts.observed.nodes.get(name)
        if node is None or memory == _EMPTY:
            continue
        if msgspec.structs.replace(memory, hardware=_UNKNOWN) == _EMPTY:
            draft.memory.nodes[name] = _EMPTY
            continue
        agent = facts.observed.agents.get(name)
        draft.memory.nodes[name] = _of_this_hardware(memory, node, agent, facts.now_ms)


def _of_this_hardware(memory: NodeMemory, node: Node, agent: AgentReport | None, now_ms: int) -> NodeMemory:
    known = memory.hardware
    serials = _serials(node, agent)
    other_server = bool(known.server and node.server and known.server != node.server)
    other_chips = {
        chip
        for chip in memory.chips.keys() | memory.lemons.keys()
        if _is_another(known.serials.get(chip, ""), serials.get(chip, ""), other_server=other_server)
    }

    chips = {
        chip: _begun_again(row, known.serials.get(chip, ""), serials.get(chip, ""), now_ms)
        if chip in other_chips
        else row
        for chip, row in memory.chips.items()
    }
    remembered = {chip: serials.get(chip) or known.serials.get(chip, "") for chip in chips}
    fresh = KnownHardware(
        uid=node.uid,
        server=node.server or known.server,
        serials={chip: serial for chip, serial in sorted(remembered.items()) if serial},
    )
    changed = msgspec.structs.replace(memory, hardware=fresh, chips=chips)
    if known.uid and known.uid != node.uid:
        # the annotation and the cordon of an isolation went with the old Node
        changed = msgspec.structs.replace(changed, isolated="")
    if other_chips:
        lemons = {chip: row for chip, row in memory.lemons.items() if chip not in other_chips}
        shadows = {
            policy: {chip: row for chip, row in rows.items() if chip not in other_chips}
            for policy, rows in memory.shadows.items()
        }
        changed = msgspec.structs.replace(changed, lemons=lemons, shadows=shadows)
    if other_server:
        changed = msgspec.structs.replace(changed, last_good="", reboot=(0, ""), partitions=())
    return changed if changed != memory else memory


def _serials(node: Node, agent: AgentReport | None) -> dict[int, str]:
    """The serial numbers of the chips; a report from before the Node was made is the former server's."""
    if agent is None or agent.time_ms < node.created * 1000:
        return {}
    return {chip: row.serial for chip, row in agent.chips.items() if row.serial}


def _is_another(before: str, now: str, *, other_server: bool) -> bool:
    return before != now if before and now else other_server


def _begun_again(row: ChipMemory, before: str, now: str, now_ms: int) -> ChipMemory:
    """The memory of a new chip in an old one's place: epochs keep growing, and people's holds are on the place."""
    what = f"chip {now} is in the place of {before}" if before and now else "another server has this name"
    return ChipMemory(
        epoch=row.epoch,
        ordered=row.ordered,
        recovering=row.recovering,
        holds=tuple(hold for hold in row.holds if hold.kind == HoldKind.MANUAL),
        timeline=(*row.timeline, (now_ms, f"{what}: its history begins here"))[-TIMELINE:],
    )
