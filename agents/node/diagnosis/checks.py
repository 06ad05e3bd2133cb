"""What `npu-smi` and `hccn_tool` printed before and after a job (``npu_info_before.txt``, ``npu_info_after.txt``).

Each command stands on a line of its own, its output below it. Events that need no comparison are plain rules about
lines; here are those that need numbers: optical power outside its limits, flags of lost light, links that stay down.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from belay.agents.node.diagnosis.matching import Findings, LogText
from belay.engine.model.log_evidence import EventRole, LogRule

OPTICAL_POWER: Final = LogRule("OpticalPowerOutOfRange", EventRole.CAUSE, ())
OPTICAL_SIGNAL: Final = LogRule("OpticalSignalLost", EventRole.CAUSE, ())
LINK_STAYED_DOWN: Final = LogRule("NpuLinkDown", EventRole.CAUSE, ())
_COMMAND: Final = re.compile(r"(?:hccn_tool|npu-smi\s+info)\s+-i\s+(\d{1,3})\b(.*)")
_POWER: Final = re.compile(r"\b([TR]x) Power\d{0,3}\s{0,30}:\s{0,4}(\d{1,8}(?:\.\d{1,8})?) mW")
_LIMIT: Final = re.compile(r"\b([TR]x)Power (High|Low) Thres\s{0,30}:\s{0,4}(\d{1,8}(?:\.\d{1,8})?) mW")
_FLAG: Final = re.compile(r"\b([TR]x Lo[SsL]) Flag\s{0,30}:\s{0,4}0x([0-9A-Fa-f]{1,4})")
_CHANGE: Final = re.compile(r"\[devid \d{1,3}\].*\bLINK (DOWN|UP)\b")


def look_at_checks(findings: Findings, log: LogText) -> None:
    """Add what the numbers of a file say."""
    for chip, command, lines in _sections(log.data.decode(errors="replace")):
        if "-optical" in command:
            _optical(findings, log, chip, lines)
        elif "-link_stat" in command:
            # the newest change comes first
            changes = [(line, found[1]) for line in lines if (found := _CHANGE.search(line))]
            if changes and changes[0][1] == "DOWN":
                findings.add(log, LINK_STAYED_DOWN, f"NPU {chip}: link is still down since {_after(changes[0][0])}")


def _after(line: str) -> str:
    return line.partition("]")[2].rpartition("LINK")[0].strip()


def _optical(findings: Findings, log: LogText, chip: str, lines: list[str]) -> None:
    text = "\n".join(lines)
    limits = {(side, end): float(value) for side, end, value in _LIMIT.findall(text)}
    for side, value in _POWER.findall(text):
        low, high = limits.get((side, "Low")), limits.get((side, "High"))
        if low is not None and high is not None and not low <= float(value) <= high:
            findings.add(
                log, OPTICAL_POWER, f"NPU {chip}: {side} Power {value} mW is outside its limits {low:g} to {high:g} mW"
            )
            return
    for line in lines:
        if (flag := _FLAG.search(line)) is not None and int(flag[2], 16):
            findings.add(log, OPTICAL_SIGNAL, f"NPU {chip}: {flag[1]} Flag 0x{flag[2]}: light or lock is lost")


def _sections(text: str) -> Iterator[tuple[str, str, list[str]]]:
    chip, command, lines = "", "", list[str]()
    for line in text.splitlines():
        found = _COMMAND.search(line)
        if found is not None:
            if chip:
                yield chip, command, lines
            chip, command, lines = found[1], found[2], []
        elif chip:
            lines.append(line)
    if chip:
        yield chip, command, lines
