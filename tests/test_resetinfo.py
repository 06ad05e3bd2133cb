"""``reset-config-<job>``: what training managers read, byte for byte."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from belay.engine.model.actions import EvictPod, SignalJob
from belay.engine.wire import resetinfo
from belay.engine.wire.errors import WireError
from tests.test_plan_recover import gang, world
from tests.worlds import decide


def config_map(**data: str) -> dict[str, Any]:
    metadata = {"namespace": "train", "name": "reset-config-j", "labels": {"reset": "true"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def signal(cm: dict[str, Any], word: str, *ranks: int, now: int = 100) -> dict[str, str]:
    data = resetinfo.with_signal(cm, word, ranks, now)
    assert data is not None
    assert data["checkCode"] == hashlib.sha256(data["reset.json"].encode()).hexdigest(), "over the whole object"
    return data


def test_an_untouched_config_map_gets_every_field_in_its_order() -> None:
    data = signal(config_map(), "fault", 9, 8)
    assert data["reset.json"] == (
        '{"RankList":[{"RankId":8,"LogicId":0,"Status":"fault","Policy":"","InitialPolicy":"","ErrorCode":null,'
        '"ErrorCodeHex":""},{"RankId":9,"LogicId":0,"Status":"fault","Policy":"","InitialPolicy":"","ErrorCode":null,'
        '"ErrorCodeHex":""}],"UpdateTime":100,"RetryTime":0,"FaultFlushing":false,"GracefulExit":0,'
        '"RestartFaultProcess":true}'
    )


@pytest.mark.parametrize(
    ("word", "changed"),
    [
        ("flush", {"FaultFlushing": True, "RankList": []}),
        ("restart", {"RetryTime": 4, "RankList": [], "RestartFaultProcess": False}),
        ("podReschedule", {"RetryTime": 4, "RankList": [], "GracefulExit": 0}),
        ("gracefulExit", {"GracefulExit": 1}),
        ("clear", {"RankList": [], "FaultFlushing": False, "GracefulExit": 0, "RestartFaultProcess": False}),
    ],
)
def test_each_signal_changes_what_it_means_and_nothing_else(word: str, changed: dict[str, Any]) -> None:
    before = '{"RestartFaultProcess":true,"RetryTime":3,"RankList":[{"Status":"fault","RankId":1}],"UpdateTime":5}'
    data = signal(config_map(**{"reset.json": before, "other": "kept"}), word)
    after, told = resetinfo.read(config_map(**{"reset.json": before})), json.loads(data["reset.json"])
    assert told == {**after, **changed, "UpdateTime": 100}
    assert list(told) == [
        "RankList", "UpdateTime", "RetryTime", "FaultFlushing", "GracefulExit", "RestartFaultProcess",
    ]  # fmt: skip
    assert data["other"] == "kept"
    assert data.get("restartType") == ("podReschedule" if word == "podReschedule" else None)


def test_process_recovery_forgets_what_restarted_the_job_before() -> None:
    once = config_map(**signal(config_map(), "podReschedule"))
    assert once["data"]["restartType"] == "podReschedule"
    kept = resetinfo.with_signal(once, "restart", (), 200)
    dropped = resetinfo.with_signal(once, "restart", (), 200, keeps_type=False)
    assert kept is not None and kept["restartType"] == "podReschedule"
    assert dropped is not None and "restartType" not in dropped
    assert resetinfo.with_signal(config_map(**dropped), "clear", (), 300, keeps_type=False) is None


def test_an_unchanged_signal_writes_nothing() -> None:
    once = config_map(**signal(config_map(), "gracefulExit"))
    assert resetinfo.with_signal(once, "gracefulExit", (), 200) is None
    broken = config_map(**{**once["data"], "checkCode": "0"})
    assert signal(broken, "gracefulExit", now=200)["reset.json"] != once["data"]["reset.json"], "a wrong code is mended"


def test_invalid_content_and_an_online_reset_are_rejected() -> None:
    for text in ("[]", '{"RankList":7}', '{"RetryTime":"x"}', '{"FaultFlushing":1}', "{"):
        with pytest.raises(WireError, match=r"reset\.json"):
            resetinfo.with_signal(config_map(**{"reset.json": text}), "flush", (), 1)
    online = config_map(**{"reset.json": '{"RankList":[{"RankId":0,"Policy":"reset"}]}'})
    with pytest.raises(WireError, match="cannot run at the same time"):
        resetinfo.with_signal(online, "fault", (0,), 1)
    assert signal(online, "clear")
    with pytest.raises(ValueError, match="unknown signal"):
        resetinfo.with_signal(config_map(), "dance", (), 1)


def test_a_pod_level_reschedule_notifies_the_pods_that_stay() -> None:
    pods = gang(labels={"pod-rescheduling": "on"})
    scope = decide(world(pods, bad=1, objects=[config_map()]))
    told = [(type(a), getattr(a, "signal", "")) for a in scope.actions if isinstance(a, SignalJob | EvictPod)]
    assert told == [(SignalJob, "podReschedule"), (EvictPod, "")]
    whole = decide(world(gang(), bad=1, objects=[config_map()]))
    assert not [a for a in whole.actions if isinstance(a, SignalJob)]
    itself = gang(labels={"process-recover-enable": "on"})
    assert not [a for a in decide(world(itself, bad=1, objects=[config_map()])).actions if isinstance(a, SignalJob)]
