"""npu-smi: identity and state of a node's chips, from the program's output.

Releases differ in titles, blanks and columns, so values are found by key or column title, in any case and spacing;
``NA`` and ``-`` are no value. Commands: npu-smi's public reference; vNPU commands as MindCluster's documents use them
(docs/zh/scheduling/03_basic_scheduling).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from belay.agents.drivers.base import DriverError
from belay.agents.drivers.tools.command import Runner, pairs, tables
from belay.agents.drivers.tools.hccn import Tool

PROGRAM: Final = "npu-smi"
_CODE = re.compile(r"\b(?:0x)?([0-9A-Fa-f]{7,8})\b")
_COLUMNS = re.compile(r"\s{2,}")
_PREFIX = re.compile(r"^Ascend(?:\s+(?=\d)|(?=(?:910|310)\w*$))")
_FIRST_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_NOTHING: Final = ("", "NA", "N/A", "-")
_SHOWN: Final = 120


class NpuSmiChip(NamedTuple):
    """One chip: physical and logic id, the card (npu-smi's NPU ID), the chip on it, its name."""

    phy: int
    logic: int
    card: int
    chip: int
    name: str


class Facts:
    """``key : value`` lines, looked up by normalised key."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found = {_plain(key): value for key, value in pairs(text).items() if value not in _NOTHING}

    def text(self, *keys: str) -> str:
        """Return the value of the first of these keys present; empty when none is. Units in keys are ignored."""
        for key in keys:
            for known, value in self._found.items():
                if known == _plain(key):
                    return value
        return ""

    def number(self, *keys: str) -> float:
        """Return the number of the first of these keys. Raises DriverError when there is none."""
        match = _FIRST_NUMBER.search(self.text(*keys))
        if match is None:
            raise DriverError(f"npu-smi: no {keys[0]} in {_shown(self._text)}")
        return float(match[0])


class NpuSmi:
    """Queries and commands of the program. Raises DriverError."""

    def __init__(self, tool: Tool | None = None) -> None:
        self._tool: Tool | Runner = tool or Runner(PROGRAM)

    async def places(self) -> list[NpuSmiChip]:
        """Every NPU chip, ascending by physical id."""
        return places(await self._tool.run(["info", "-m"]))

    async def board(self, card: int) -> Facts:
        """Serial number, board id, PCIe address, versions of a card."""
        return Facts(await self._tool.run(["info", "-t", "board", "-i", str(card)]))

    async def about(self, what: str, card: int, chip: int) -> Facts:
        """Return one of ``common``, ``health``, ``usages``, ``temp``, ``power``, ``ecc`` of a chip."""
        return Facts(await self._tool.run(["info", "-t", what, "-i", str(card), "-c", str(chip)]))

    async def codes(self, card: int, chip: int) -> list[str]:
        """Fault codes that are present, upper-case hex."""
        facts = await self.about("health", card, chip)
        return sorted({code.upper() for code in _CODE.findall(facts.text("Error Code", "Error Codes"))})

    async def processes(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """(process, MB) by card and chip, from the overview."""
        return processes(await self._tool.run(["info"]))

    async def vnpus(self, card: int, chip: int) -> list[tuple[int, str]]:
        """(id, template) of each vNPU of a chip."""
        return vnpus(await self._tool.run(["info", "-t", "info-vnpu", "-i", str(card), "-c", str(chip)]))

    async def create(self, card: int, chip: int, template: str) -> None:
        """Create a vNPU; its id is found by listing."""
        if not re.fullmatch(r"[A-Za-z0-9_]{1,31}", template):
            raise DriverError(f"template {template[:64]!r} is not the name of a template")
        line = ["set", "-t", "create-vnpu", "-i", str(card), "-c", str(chip), "-f", template]
        done(await self._tool.run(line))

    async def destroy(self, card: int, chip: int, vnpu: int) -> None:
        """Destroy a vNPU."""
        done(await self._tool.run(["set", "-t", "destroy-vnpu", "-i", str(card), "-c", str(chip), "-v", str(vnpu)]))


def places(text: str) -> list[NpuSmiChip]:
    """The table of ``info -m``: columns separated by two blanks or more, identified by their titles."""
    found: list[NpuSmiChip] = []
    titles: list[str] = []
    for line in text.splitlines():
        cells = _COLUMNS.split(line.strip())
        plain = [_plain(cell) for cell in cells]
        if "npuid" in plain and "chipid" in plain:
            titles = plain
            continue
        if not titles or len(cells) < len(titles):
            continue
        row = dict(zip(titles, cells, strict=False))
        logic = row.get("chiplogicid", "-")
        if not logic.isdecimal() or not row["npuid"].isdecimal() or not row["chipid"].isdecimal():
            # the management unit of a card has no logic id
            continue
        phy = row.get("chipphyid", logic)
        # as the library names them: 910B3, 310P3, but Ascend910-9382 and Ascend950PR
        name = _PREFIX.sub("", row.get("chipname", ""))
        found.append(
            NpuSmiChip(
                int(phy) if phy.isdecimal() else int(logic), int(logic), int(row["npuid"]), int(row["chipid"]), name
            )
        )
    if not found:
        raise DriverError(f"npu-smi: no chips in {_shown(text)}")
    return sorted(found)


def processes(text: str) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """The second table of the overview; a release may put card and chip in one cell or in two."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    inside = False
    for table in tables(text):
        for row in table:
            plain = [_plain(cell) for cell in row]
            if any(cell.startswith("processid") for cell in plain):
                inside = True
                continue
            if not inside:
                continue
            words = [word for cell in row for word in cell.split()]
            numbers = [int(word) for word in words if word.isdecimal()]
            # card, chip, process … memory; a line without a process has text instead
            if len(row) >= 3 and len(numbers) >= 4 and all(word.isdecimal() for word in words[:3]):
                found.setdefault((numbers[0], numbers[1]), []).append((numbers[2], numbers[-1]))
    return found


def vnpus(text: str) -> list[tuple[int, str]]:
    """The last table of ``info-vnpu``, by its titles."""
    for table in tables(text):
        for number, row in enumerate(table):
            plain = [_plain(cell) for cell in row]
            if "vnpuid" in plain and "templatename" in plain:
                at, name = plain.index("vnpuid"), plain.index("templatename")
                rows = [cells for cells in table[number + 1 :] if len(cells) == len(plain) and cells[at].isdecimal()]
                return [(int(cells[at]), cells[name]) for cells in rows]
    return []


def done(text: str) -> None:
    """Check the program's report that a command succeeded. Raises DriverError with its output."""
    facts = Facts(text)
    if facts.text("Status").upper() not in ("OK", "SUCCESS"):
        raise DriverError(f"npu-smi: {facts.text('Message') or _shown(text)}"[:300])


def _plain(key: str) -> str:
    """Return a key without case, blanks, signs, and the unit in trailing brackets."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"\(.*?\)", "", key.lower()))


def _shown(text: str) -> str:
    return repr(" ".join(text.split())[:_SHOWN])
