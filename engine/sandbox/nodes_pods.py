"""The life of one pod on a simulated node, as a pure step: what to write now and when to run again.

Annotations control simulated containers:
`sim.belay.dev/exit-after: 30s` and `sim.belay.dev/exit-code: "1"` (or a list, one a run: `"1,0"`) ·
`sim.belay.dev/exit-now: "3"` (at once; the kubelet then removes it) · `sim.belay.dev/fail-on-chip-fault: "true"` ·
`sim.belay.dev/ready-after: 5s`. Without any it runs until it is deleted.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final

import msgspec

from belay.engine.model.labels import (
    SANDBOX_LOG,
    SIMULATED_EXIT_AFTER,
    SIMULATED_EXIT_CODE,
    SIMULATED_EXIT_NOW,
    SIMULATED_FAIL_ON_FAULT,
    SIMULATED_READY_AFTER,
)
from belay.engine.sandbox.nodes_devices import PodRejection
from belay.engine.sandbox.settings import SandboxSettings
from belay.engine.workloads import objects as o
from belay.engine.workloads.writes import Reconciled, Write, delete, patch, patch_status

Json = dict[str, Any]

FIRST_CRASH_PAUSE_S: Final = 10.0
LONGEST_CRASH_PAUSE_S: Final = 300.0
DEFAULT_GRACE_S: Final = 30.0
_DURATION: Final = re.compile(r"^(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?$")


class PodTimes(msgspec.Struct):
    """Times of one pod's life by the kubelet's clock (Unix seconds, finer than the API's); 0: not yet, or before this
    process started."""

    seen: float = 0.0
    deletion_seen: float = 0.0
    admitted: float = 0.0
    running: float = 0.0
    crashed: float = 0.0
    end_requested: float = 0.0


class RealProcess(msgspec.Struct, frozen=True):
    """The process of a container that really runs (`containers.py`): its exit code once it has ended."""

    code: int | None = None
    alive: bool = False


class PodHost(msgspec.Struct, frozen=True):
    """The node as a pod needs it; ``ran`` is the pod's real process, None if its containers are only simulated."""

    name: str
    ip: str
    settings: SandboxSettings
    faulty: Collection[str] = ()
    runtime_up: bool = True
    ran: RealProcess | None = None


def duration(text: str | None) -> float | None:
    """Seconds of a Go duration such as ``1h30m`` or ``2.5s``; None when absent or unreadable."""
    found = _DURATION.match(text or "")
    if not text or not found or not any(found.groups()):
        return None
    hours, minutes, seconds = (float(group or 0) for group in found.groups())
    return hours * 3600 + minutes * 60 + seconds


def refuse(pod: Json, refusal: PodRejection) -> Reconciled:
    """Fail a pod that the node rejects; its owner has to create another."""
    body = {"phase": "Failed", "reason": refusal.reason, "message": refusal.message}
    return Reconciled((_status(pod, body),))


def admit(pod: Json, annotations: dict[str, str], host: PodHost, times: PodTimes, now: float) -> Reconciled:
    """Admit the pod: write its devices before its status, so that no chip is used before it is recorded."""
    times.admitted = now
    writes = []
    if annotations:
        writes.append(patch(pod, "Pod", {"metadata": {"annotations": annotations}}))
    body = {
        "phase": "Pending",
        "startTime": o.stamp(now),
        "hostIP": host.ip,
        "qosClass": (pod.get("status") or {}).get("qosClass") or "Burstable",
        "conditions": _conditions(pod, now, ready=False, reason="ContainersNotReady"),
        "containerStatuses": [
            _container(c, {"waiting": {"reason": "ContainerCreating"}}, 0) for c in containers_of(pod)
        ],
    }
    return Reconciled((*writes, _status(pod, body)), _start_delay(pod, host))


def advance(pod: Json, host: PodHost, times: PodTimes, pod_ip: str, held: Collection[str], now: float) -> Reconciled:
    """One step for an admitted pod; ``held`` are its device names."""
    if o.deleting(pod):
        return _terminate(pod, host, times, now)
    if o.finished(pod):
        return Reconciled()
    if (left := _time_left(pod, host, now)) is not None and left <= 0:
        body = {
            "phase": "Failed",
            "reason": "DeadlineExceeded",
            "message": "Pod was active on the node longer than the specified deadline",
        }
        return Reconciled((_status(pod, body | _ended(pod, 137, now)),))
    if not host.runtime_up:
        return Reconciled(again_in=left)
    step = _run(pod, host, times, pod_ip, held, now)
    return Reconciled(step.writes, min((w for w in (step.again_in, left) if w is not None), default=None))


def _run(pod: Json, host: PodHost, times: PodTimes, pod_ip: str, held: Collection[str], now: float) -> Reconciled:
    state = state_of(pod)
    if state == "running":
        return _while_running(pod, host, times, held, now)
    if state == "crashed":
        since = times.crashed or now
        times.crashed = since
        left = since + _crash_pause(restarts_of(pod), host) - now
    else:
        since = times.admitted or o.time_of((pod.get("status") or {}).get("startTime"))
        left = since + _start_delay(pod, host) - now
    return Reconciled(again_in=left) if left > 0 else _start(pod, host, times, pod_ip, now)


def _start(pod: Json, host: PodHost, times: PodTimes, pod_ip: str, now: float) -> Reconciled:
    times.running, times.crashed = now, 0.0
    wait = duration(_annotation(pod, SIMULATED_READY_AFTER))
    ready = not wait
    body = {
        "phase": "Running",
        "hostIP": host.ip,
        "podIP": pod_ip,
        "podIPs": [{"ip": pod_ip}],
        "conditions": _conditions(pod, now, ready=ready, reason="ContainersNotReady"),
        "containerStatuses": _statuses(pod, {"running": {"startedAt": o.stamp(now)}}, restarts_of(pod), ready=ready),
    }
    line = f"{o.stamp(now)} started on {host.name}"
    log = (_annotation(pod, SANDBOX_LOG) + "\n" + line).strip()[-4000:] + "\n"
    first = patch(pod, "Pod", {"metadata": {"annotations": {SANDBOX_LOG: log}}})
    return Reconciled((_status(pod, body), first), 0.0 if wait or _annotation(pod, SIMULATED_EXIT_AFTER) else None)


def _while_running(pod: Json, host: PodHost, times: PodTimes, held: Collection[str], now: float) -> Reconciled:
    if not times.running:
        times.running = _started(pod) or now
    code = _exit(pod, host, times, held, now)
    if code is not None:
        return _end(pod, host, times, code, now)
    waits = []
    if (after := duration(_annotation(pod, SIMULATED_EXIT_AFTER))) is not None:
        waits.append(times.running + host.settings.scaled(after) - now)
    writes: list[Write] = []
    if not o.ready(pod):
        left = times.running + host.settings.scaled(duration(_annotation(pod, SIMULATED_READY_AFTER)) or 0.0) - now
        if left > 0:
            waits.append(left)
        else:
            writes.append(_status(pod, _ready_again(pod, now)))
    return Reconciled(tuple(writes), min(waits, default=None))


def _exit(pod: Json, host: PodHost, times: PodTimes, held: Collection[str], now: float) -> int | None:
    """The exit code with which the containers end now; None while they run."""
    if text := _annotation(pod, SIMULATED_EXIT_NOW):
        return int(text) if text.isdecimal() else 1
    if host.ran is not None and host.ran.code is not None:
        return host.ran.code
    if _annotation(pod, SIMULATED_FAIL_ON_FAULT) not in ("", "false") and any(name in host.faulty for name in held):
        return 1
    after = duration(_annotation(pod, SIMULATED_EXIT_AFTER))
    if after is not None and now >= times.running + host.settings.scaled(after):
        codes = [part.strip() for part in (_annotation(pod, SIMULATED_EXIT_CODE) or "0").split(",")]
        text = codes[min(restarts_of(pod), len(codes) - 1)]
        return int(text) if text.isdecimal() else 1
    return None


def _end(pod: Json, host: PodHost, times: PodTimes, code: int, now: float) -> Reconciled:
    """Containers ended with ``code``: restart them or end the pod."""
    writes: list[Write] = []
    if _annotation(pod, SIMULATED_EXIT_NOW):
        writes.append(patch(pod, "Pod", {"metadata": {"annotations": {SIMULATED_EXIT_NOW: None}}}))
    policy = str((pod.get("spec") or {}).get("restartPolicy") or "Always")
    if policy == "Always" or (policy == "OnFailure" and code):
        restarts = restarts_of(pod) + 1
        times.crashed, times.running = now, 0.0
        body = {
            "conditions": _conditions(pod, now, ready=False, reason="ContainersNotReady"),
            "containerStatuses": _statuses(
                pod,
                {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off restarting failed container"}},
                restarts,
                code=code,
                now=now,
            ),
        }
        writes.append(_status(pod, body))
        return Reconciled(tuple(writes), _crash_pause(restarts, host))
    writes.append(_status(pod, {"phase": "Failed" if code else "Succeeded"} | _ended(pod, code, now)))
    return Reconciled(tuple(writes))


def _terminate(pod: Json, host: PodHost, times: PodTimes, now: float) -> Reconciled:
    """Terminate the pod: it keeps its chips for its (scaled) grace period."""
    if not times.end_requested:
        times.end_requested = now
    grace = pod["metadata"].get("deletionGracePeriodSeconds")
    seconds = host.settings.scaled(DEFAULT_GRACE_S if grace is None else float(grace))
    left = times.end_requested + seconds - now
    if host.ran is not None and not host.ran.alive:
        left = 0.0
    if left > 0 and not o.finished(pod) and state_of(pod) != "waiting":
        return Reconciled(again_in=left)
    writes = [delete(pod, "Pod", 0)]
    if pod["metadata"].get("finalizers"):
        if o.finished(pod):
            return Reconciled()  # the node is done with the pod; the object stays for its finalizers
        writes = [_status(pod, {"phase": "Failed"} | _ended(pod, 137, now)), *writes]
    return Reconciled(tuple(writes))


def _time_left(pod: Json, host: PodHost, now: float) -> float | None:
    limit = (pod.get("spec") or {}).get("activeDeadlineSeconds")
    started = o.time_of((pod.get("status") or {}).get("startTime"))
    return started + host.settings.scaled(float(limit)) - now if limit is not None and started else None


def _crash_pause(restarts: int, host: PodHost) -> float:
    growth = float(2 ** min(max(0, restarts - 1), 10))
    return host.settings.scaled(min(LONGEST_CRASH_PAUSE_S, FIRST_CRASH_PAUSE_S * growth))


def _start_delay(pod: Json, host: PodHost) -> float:
    """Pulling and starting take from half to one and a half of the setting, the same for the same pod name."""
    spread = sum(pod["metadata"]["name"].encode()) % 101 / 100
    return float(host.settings.scaled(host.settings.start_seconds) * (0.5 + spread))


def _annotation(pod: Json, key: str) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(key) or "")


def containers_of(pod: Json) -> list[Json]:
    """The pod's containers as its spec has them."""
    return list((pod.get("spec") or {}).get("containers") or ())


def _first_status(pod: Json) -> Json:
    statuses = (pod.get("status") or {}).get("containerStatuses") or [{}]
    return dict(statuses[0])


def state_of(pod: Json) -> str:
    """Running, crashed (to be started again) or waiting (never started)."""
    first = _first_status(pod)
    state = first.get("state") or {}
    if "running" in state:
        return "running"
    return "crashed" if first.get("restartCount") else "waiting"


def restarts_of(pod: Json) -> int:
    """How often its containers were restarted."""
    return int(_first_status(pod).get("restartCount") or 0)


def _started(pod: Json) -> float:
    return o.time_of(((_first_status(pod).get("state") or {}).get("running") or {}).get("startedAt"))


def _container(container: Json, state: Json, restarts: int, *, ready: bool = False, last: Json | None = None) -> Json:
    return {
        "name": container.get("name", "main"),
        "image": container.get("image", ""),
        "imageID": f"sim://{container.get('image', '')}",
        "containerID": f"sim://{container.get('name', 'main')}/{restarts}",
        "ready": ready,
        "started": "running" in state,
        "restartCount": restarts,
        "state": state,
        "lastState": last or {},
    }


def _statuses(
    pod: Json, state: Json, restarts: int, *, ready: bool = False, code: int | None = None, now: float = 0.0
) -> list[Json]:
    last = _first_status(pod).get("lastState") or {}
    if code is not None:
        last = {"terminated": _terminated(pod, code, now)}
    return [_container(c, state, restarts, ready=ready, last=last) for c in containers_of(pod)]


def _terminated(pod: Json, code: int, now: float) -> Json:
    started = ((_first_status(pod).get("state") or {}).get("running") or {}).get("startedAt") or o.stamp(now)
    reason = "Completed" if code == 0 else "Error"
    return {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": o.stamp(now)}


def _ended(pod: Json, code: int, now: float) -> Json:
    state = {"terminated": _terminated(pod, code, now)}
    return {
        "conditions": _conditions(pod, now, ready=False, reason="PodCompleted" if code == 0 else "PodFailed"),
        "containerStatuses": _statuses(pod, state, restarts_of(pod)),
    }


def _ready_again(pod: Json, now: float) -> Json:
    statuses = [{**c, "ready": True} for c in (pod.get("status") or {}).get("containerStatuses") or ()]
    return {"conditions": _conditions(pod, now, ready=True, reason=""), "containerStatuses": statuses}


def _conditions(pod: Json, now: float, *, ready: bool, reason: str) -> list[Json]:
    """The four conditions of every pod; others stay."""
    before = {c.get("type"): c for c in (pod.get("status") or {}).get("conditions") or ()}
    rows = {"PodScheduled": True, "Initialized": True, "ContainersReady": ready, "Ready": ready}
    out = [dict(c) for kind, c in before.items() if kind not in rows]
    for kind, value in rows.items():
        word = "True" if value else "False"
        was = before.get(kind, {})
        since = was.get("lastTransitionTime") if was.get("status") == word else None
        entry = {"type": kind, "status": word, "lastProbeTime": None, "lastTransitionTime": since or o.stamp(now)}
        if not value and reason:
            entry["reason"] = reason
        out.append(entry)
    return out


def _status(pod: Json, body: Json) -> Write:
    return patch_status(pod, "Pod", body)
