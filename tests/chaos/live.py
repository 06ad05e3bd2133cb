"""Which pods live on which chips, by the annotations that device plugins read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

RESOURCE = "huawei.com/Ascend910"
REAL = "huawei.com/AscendReal"
"""What kubelet gave in the end: equal pods of one node may have changed places."""


def living(pod: Mapping[str, Any]) -> bool:
    """Whether it is bound and has not ended; one that terminates lives until it is gone."""
    bound = bool((pod.get("spec") or {}).get("nodeName"))
    return bound and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def on_chips(pods: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """``node/chip`` → the pods that live there."""
    found: dict[str, list[str]] = {}
    for pod in filter(living, pods):
        for chip in chips_of(pod):
            found.setdefault(chip, []).append(pod["metadata"]["name"])
    return found


def chips_of(pod: Mapping[str, Any]) -> list[str]:
    """``node/chip`` of each of its chips."""
    notes = pod["metadata"].get("annotations") or {}
    text = str(notes.get(REAL) or notes.get(RESOURCE) or "")
    return [f"{pod['spec']['nodeName']}/{chip}" for chip in filter(None, text.split(","))]
