"""The public fault of a chip that computed a wrong result, as `belay train` reports it.

It is Belay's own code, which the shipped table shows and does nothing about: one flipped bit may never come again. A
FaultPolicy may give it a worse level. It stands until a ``recover`` of the same sender and id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from belay.engine.model.attribution import PodPlacement
from belay.engine.model.public_faults import MAX_DESCRIPTION, MAX_FAULTS
from belay.engine.wire.training import training_pb2 as pb

SENDER: Final = "belay-train"
CODE: Final = "000001B01"


def wrong_results(request: pb.Recovery, job: str, placed: Sequence[PodPlacement], now_ms: int) -> dict[str, Any] | None:
    """The message about the chips of the ranks that were wrong; None if none of them is known. ``job``: its name for
    people."""
    per_pod = max(1, request.local_world_size)
    pods = {one.rank: one for one in placed}
    rows = []
    for rank in sorted(set(request.wrong))[:MAX_FAULTS]:
        place = pods.get(rank // per_pod)
        if place is None or not place.chips:
            continue
        chips = place.chips
        own = [chips[rank % per_pod]] if len(chips) == per_pod else list(chips)
        rows.append(_fault(request, job, rank, place.pod.node, own, now_ms))
    if not rows:
        return None
    name = f"wrong-results-{_digest(job, request.job_id, request.generation)}"
    return {"id": name, "timestamp": now_ms, "version": "1.0", "resource": SENDER, "faults": rows}


def _fault(request: pb.Recovery, job: str, rank: int, node: str, chips: list[int], now_ms: int) -> dict[str, Any]:
    text = f"rank {rank} of {job}: {request.cause}".translate({9: " ", 10: " ", 13: " "})
    return {
        # of one chip there is one, however often it is wrong
        "faultId": f"wrong-result-{_digest(node, *chips)}",
        "faultType": "NPU",
        "faultCode": CODE,
        "faultTime": now_ms - request.age_us // 1000,
        "assertion": "occur",
        "faultLocation": {"job": job[:128], "rank": str(rank), "step": str(request.step)},
        "influence": [{"nodeName": node, "deviceIds": chips}],
        "description": text[:MAX_DESCRIPTION],
    }


def _digest(*parts: object) -> str:
    return hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()[:16]


__all__ = ["CODE", "SENDER", "wrong_results"]
