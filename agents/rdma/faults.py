"""The checks of RDMA cards. What cannot be read is no fault.

Source: component/k8s-rdma-shared-dev-plugin/pkg/fault/fault_detection.go, scripts/fault_detection.sh.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from belay.agents.drivers.base import DriverError
from belay.agents.rdma import cards
from belay.agents.rdma.config import FaultCode
from belay.agents.rdma.devices import RdmaCard, text


class RdmaFault(msgspec.Struct, frozen=True):
    """A fault that a check found: of a card, or of the node where ``hca`` is empty. ``details`` is for the log."""

    hca: str
    code: FaultCode
    details: str


class Checks:
    """Run the checks of a table on cards. ``problem`` says why hinicadm5 could not be asked, empty when it could."""

    def __init__(self, sys: Path, tool: cards.Tool, codes: Sequence[FaultCode]) -> None:
        self._sys, self._tool, self._codes = sys, tool, codes
        self.problem = ""

    async def run(self, found: Sequence[RdmaCard]) -> list[RdmaFault]:
        """Run every check and return the faults that are present now."""
        self.problem = ""
        wanted = {code.check for code in self._codes}
        info = await self._ask("info") if found and wanted - {"check_hca_port"} else ""
        groups = cards.interfaces(info)
        widths: dict[str, list[cards.PortWidth]] = {}
        if wanted & {"check_ub_port", "check_ub_lane"}:
            for name, members in groups.items():
                if any(card.interface in members for card in found if card.interface):
                    widths[name] = cards.widths(await self._ask("host_topo", "-i", name, "-a"))
        faults = []
        for code in self._codes:
            if code.check == "check_dpu_card_drop":
                if details := self._dropped(found, info):
                    faults.append(RdmaFault("", code, details))
                continue
            for card in found:
                name = next((name for name, members in groups.items() if card.interface in members), "")
                if details := self._check(code.check, card, groups.get(name, []), widths.get(name, [])):
                    faults.append(RdmaFault(card.hca, code, details))
        return faults

    async def _ask(self, *arguments: str) -> str:
        try:
            return await self._tool.run(list(arguments))
        except DriverError as error:
            self.problem = self.problem or str(error)[:300]
            return ""

    def _check(self, check: str, card: RdmaCard, members: list[str], widths: list[cards.PortWidth]) -> str:
        match check:
            case "check_hca_port":
                port = self._sys / "class/infiniband" / card.hca / "ports/1"
                state, physical = text(port / "state"), text(port / "phys_state")
                down = state and physical and not ("ACTIVE" in state and "LinkUp" in physical)
                return f"port state {state}, phys_state {physical}" if down else ""
            case "check_bond_member":
                down_members = [name for name in members if self._bonded(name) and self._down(name)]
                return f"members of a bond are down: {', '.join(down_members[:8])}" if down_members else ""
            case "check_ub_port":
                return (
                    f"all {len(widths)} UB ports are down" if widths and not any(one.current for one in widths) else ""
                )
            case _:
                slow = [
                    f"{one.port} ({one.current} of {one.capable})" for one in widths if 0 < one.current < one.capable
                ]
                return f"lanes are down: {', '.join(slow[:8])}" if slow else ""

    def _bonded(self, interface: str) -> bool:
        return (self._sys / "class/net" / interface / "master").exists()

    def _down(self, interface: str) -> bool:
        place = self._sys / "class/net" / interface
        state = text(place / "operstate")
        # carrier cannot be read while an interface is switched off
        return bool(state) and (state == "down" or text(place / "carrier") in ("", "0"))

    def _dropped(self, found: Sequence[RdmaCard], info: str) -> str:
        first = next((card.interface for card in found if card.interface), "")
        place = self._sys / "class/net" / first
        kind = first and (text(place / "device/card_type") or text(place / "card_type"))
        wanted, there = cards.expected(kind), cards.count(info)
        return f"{there} of {wanted} cards are there" if None not in (wanted, there) and wanted != there else ""
