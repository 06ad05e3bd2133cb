"""``reset-config-<job>``: faults, resets and restarts for a job's training managers.

The job's owner creates the ConfigMap in the job's namespace with label ``reset=true``; device plugins mirror it to
files in the job's containers. Fields, their order and the CheckCode over the whole object follow
component/clusterd (TaskResetInfo, WriteResetInfoToCM) and component/ascend-device-plugin/pkg/common.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from belay.engine.model import in_place_recovery
from belay.engine.wire.errors import WireError
from belay.engine.wire.gojson import check_code, go_json, read_object

PREFIX: Final = "reset-config-"
#: The ConfigMap of older training managers; it contains only the ranks of an in-place reset.
LEGACY_PREFIX: Final = "fault-config-"
LEGACY_KEY: Final = "fault-npus"
RESET_KEY: Final = "reset.json"
CODE_KEY: Final = "checkCode"
TYPE_KEY: Final = "restartType"
HOT_RESET: Final = "hotReset"
POD_RESCHEDULE: Final = "podReschedule"

#: The signals. ``flush``: faults are still being collected, agents wait. ``fault``: these ranks are faulty;
#: agents stay and restart only them. ``restart``: all processes restart. ``podReschedule``: pods were rescheduled, all
#: processes restart once the pods run. ``gracefulExit``: agents end their processes. ``clear``: no fault is left.
#: ``unrecovered``, ``recovered``, ``failed``: the state of chips that recover in place
#: (``belay.engine.model.in_place_recovery``).
SIGNALS: Final = (
    "flush", "fault", "restart", "podReschedule", "gracefulExit", "clear",
    in_place_recovery.UNRECOVERED, in_place_recovery.RECOVERED, in_place_recovery.FAILED,
)  # fmt: skip
#: Signals that begin and end an in-place reset.
EPISODE: Final = frozenset({in_place_recovery.UNRECOVERED, in_place_recovery.RECOVERED, in_place_recovery.FAILED})
#: Signals that older training managers get too.
LEGACY: Final = EPISODE | {"clear"}
#: Policies of a rank in the device plugin's own online reset, which excludes process recovery.
_ONLINE: Final = frozenset({"reset", "restart"})

_RANK_FIELDS: Final[tuple[tuple[str, Any], ...]] = (
    ("RankId", 0), ("LogicId", 0), ("Status", ""), ("Policy", ""), ("InitialPolicy", ""), ("ErrorCode", None),
    ("ErrorCodeHex", ""),
)  # fmt: skip
_FIELDS: Final[tuple[tuple[str, Any], ...]] = (
    ("RankList", None), ("UpdateTime", 0), ("RetryTime", 0), ("FaultFlushing", False), ("GracefulExit", 0),
    ("RestartFaultProcess", False),
)  # fmt: skip


def read(config_map: Mapping[str, Any]) -> dict[str, Any]:
    """The reset information with all fields, empty if it was never written.

    Raises:
        WireError: not a JSON object, or a field has a wrong type.
    """
    metadata = config_map.get("metadata") or {}
    where = f"ConfigMap/{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    text = (config_map.get("data") or {}).get(RESET_KEY)
    body = read_object(where, f"data.{RESET_KEY}", text) if text else {}
    ranks = body.get("RankList")
    if ranks is not None and not (isinstance(ranks, list) and all(isinstance(rank, dict) for rank in ranks)):
        raise WireError(where, f"data.{RESET_KEY}.RankList", "must be a list of objects")
    for name in ("UpdateTime", "RetryTime", "GracefulExit"):
        if not isinstance(body.get(name, 0), int):
            raise WireError(where, f"data.{RESET_KEY}.{name}", "must be a whole number")
    for name in ("FaultFlushing", "RestartFaultProcess"):
        if not isinstance(body.get(name, False), bool):
            raise WireError(where, f"data.{RESET_KEY}.{name}", "must be true or false")
    out = {name: body.get(name, default) for name, default in _FIELDS}
    out["RankList"] = [_rank(rank) for rank in ranks or ()]
    return out


def asks_to_exit(config_map: Mapping[str, Any]) -> bool:
    """Whether agents are asked to end their processes; one that cannot be read asks for nothing."""
    try:
        return bool(read(config_map)["GracefulExit"] == 1)
    except WireError:
        return False


def rank(
    number: int, logic: int, *, status: str, policy: str, initial: str, codes: Iterable[str] = ()
) -> dict[str, Any]:
    """One element of ``RankList`` as the device plugin writes it: codes as hexadecimal text only."""
    return _rank(
        {
            "RankId": number, "LogicId": logic, "Status": status, "Policy": policy, "InitialPolicy": initial,
            "ErrorCode": [], "ErrorCodeHex": ",".join(code.upper() for code in codes),
        }
    )  # fmt: skip


def with_signal(
    config_map: Mapping[str, Any],
    signal: str,
    ranks: Iterable[int],
    now: int,
    *,
    in_place: bool = True,
    rank_list: Sequence[Mapping[str, Any]] = (),
    keeps_type: bool = True,
) -> dict[str, str] | None:
    """The ConfigMap's data after a signal; None if it already has it. ``now`` is Unix seconds.

    With ``in_place`` false, the agents of faulty ranks exit with their processes instead of restarting them.
    ``rank_list`` has the elements that an in-place reset writes. ``keeps_type`` is false in process recovery: what
    restarted the job before, pods or chips, says nothing of its signals.

    Raises:
        WireError: the ConfigMap cannot be read, or the device plugin is resetting chips of the job itself.
        ValueError: an unknown signal.
    """
    body = read(config_map)
    if signal in ("flush", "fault", "restart") and any(rank["Policy"] in _ONLINE for rank in body["RankList"]):
        raise WireError(
            str((config_map.get("metadata") or {}).get("name", "")),
            f"data.{RESET_KEY}.RankList",
            "the device plugin is resetting chips of this job online; process recovery cannot run at the same time",
        )
    if signal in EPISODE:
        after, fresh = _episode(config_map, body, rank_list)
    else:
        after, fresh = {**body, **_change(body, signal, ranks)}, False
    if signal == "fault" and not in_place:
        after["RestartFaultProcess"] = False
    data = dict(config_map.get("data") or {})
    earlier = data.pop(TYPE_KEY, "")
    kind = HOT_RESET if fresh else {"podReschedule": POD_RESCHEDULE}.get(signal, earlier if keeps_type else "")
    if after == body and data.get(CODE_KEY) == check_code(body) and kind == earlier:
        return None
    after["UpdateTime"] = now
    data |= {RESET_KEY: go_json(after), CODE_KEY: check_code(after)}
    return data | ({TYPE_KEY: kind} if kind else {})


def with_legacy_signal(
    config_map: Mapping[str, Any], signal: str, ranks: Iterable[int], now: int
) -> dict[str, str] | None:
    """The data of ``fault-config-<job>`` after a signal; None if it already has it, or if the signal does not belong
    to an in-place reset. ``fault-npus`` has the unrecovered ranks (none after the end) and the CheckCode over it.
    ``now`` is Unix seconds. Invalid content is replaced.

    Source: component/ascend-device-plugin/pkg/common (TaskFaultInfo, until v26.0).
    """
    if signal not in LEGACY:
        return None
    bad = sorted(set(ranks)) if signal in (in_place_recovery.UNRECOVERED, in_place_recovery.FAILED) else []
    data = dict(config_map.get("data") or {})
    if signal == "clear" and not data.get(LEGACY_KEY):
        return None  # no signal was sent
    try:
        before = read_object("", f"data.{LEGACY_KEY}", data.get(LEGACY_KEY) or "{}")
    except WireError:
        before = {}
    if before.get("FaultRank") == bad and data.get(CODE_KEY) == check_code(before):
        return None
    after = {"FaultRank": bad, "UpdateTime": now}
    return data | {LEGACY_KEY: go_json(after), CODE_KEY: check_code(after)}


def _episode(
    config_map: Mapping[str, Any], body: Mapping[str, Any], rank_list: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], bool]:
    """The content during an in-place reset, and whether the reset begins here: then the restart counter grows. After a
    rank was isolated, nothing is written until the list is cleared.
    """
    before, listed = body["RankList"], [_rank(row) for row in rank_list]
    if listed == before:
        return dict(body), False
    if any(row["Policy"] == in_place_recovery.ISOLATE for row in before):
        raise WireError(
            str((config_map.get("metadata") or {}).get("name", "")),
            f"data.{RESET_KEY}.RankList",
            "a rank is isolated, so the job has to be rescheduled",
        )
    under_way = any(row["Status"] == in_place_recovery.UNRECOVERED for row in before)
    fresh = not under_way and any(row["Status"] == in_place_recovery.UNRECOVERED for row in listed)
    after = {
        **body, "RankList": listed, "RetryTime": body["RetryTime"] + fresh, "FaultFlushing": False, "GracefulExit": 0,
        "RestartFaultProcess": False,
    }  # fmt: skip
    return after, fresh


def _change(body: Mapping[str, Any], signal: str, ranks: Iterable[int]) -> dict[str, Any]:
    if signal == "flush":
        return {"RankList": [], "FaultFlushing": True}
    if signal == "fault":
        listed = [_rank({"RankId": rank, "Status": "fault"}) for rank in sorted(set(ranks))]
        return {"RankList": listed, "FaultFlushing": False, "RestartFaultProcess": True}
    # An agent restarts its processes once no listed rank is faulty: with the faults that led here it would wait on.
    if signal == "restart":
        over = {"RankList": [], "FaultFlushing": False, "RestartFaultProcess": False}
        return {**over, "RetryTime": body["RetryTime"] + 1}
    if signal == "podReschedule":
        return {"RankList": [], "RetryTime": body["RetryTime"] + 1, "GracefulExit": 0}
    if signal == "gracefulExit":
        return {"GracefulExit": 1}
    if signal == "clear":
        return {"RankList": [], "FaultFlushing": False, "GracefulExit": 0, "RestartFaultProcess": False}
    raise ValueError(f"unknown signal {signal!r}, known are {', '.join(SIGNALS)}")


def _rank(rank: Mapping[str, Any]) -> dict[str, Any]:
    return {name: rank.get(name, default) for name, default in _RANK_FIELDS}
