"""Names as a vendor wants them seen: kubelet and the API server know those only, the agent knows its own only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from belay.agents.node.publicnames import PublicName, PublicNames, read_names
from belay.engine.wire.gojson import check_code
from belay.engine.wire.names import DEVICE_NAMESPACE, DEVICE_PREFIX
from tests.agent_world import FAULT, NODE
from tests.kubelet_world import Node
from tests.test_device_plugin import run

PUBLIC = "vendor.com/Thinker9"
NAMES = PublicNames([PublicName("Ascend910", PUBLIC, "Thinker-", "vendor.com/thinker-configuration")])
ENTRY = {
    "ResourceType": "Ascend910", "DevicePublicType": PUBLIC, "DevicePublicNamePre": "Thinker-",
    "PodConfigurationName": "vendor.com/thinker-configuration",
}  # fmt: skip


def test_a_file_of_names(tmp_path: Path) -> None:
    file = tmp_path / "names.json"
    assert not read_names(file)
    file.write_text(json.dumps([ENTRY, {**ENTRY, "ResourceType": "Ascend310", "PodConfigurationName": ""}]))
    found = read_names(file)
    assert found.resource("huawei.com/Ascend910", outward=True) == PUBLIC
    assert found.resource(f"{PUBLIC}-4c", outward=False) == "huawei.com/Ascend910-4c"
    assert found.resource("huawei.com/Ascend310P", outward=True) == "huawei.com/Ascend310P"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ResourceType": "npu"}, r"\[0\].ResourceType must be one of Ascend910, Ascend310, Ascend310P"),
        ({"DevicePublicType": "short"}, r"\[0\].DevicePublicType must match"),
        ({"DevicePublicType": None}, r"\[0\].DevicePublicType must match"),
        ({"DevicePublicNamePre": "9x"}, r"\[0\].DevicePublicNamePre must match"),
        ({"PodConfigurationName": "no blanks here"}, r"\[0\].PodConfigurationName must match"),
        ({"PodConfigurationName": 7}, r"\[0\].PodConfigurationName must match"),
    ],
)
def test_a_wrong_name_is_refused_by_its_field(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    file = tmp_path / "names.json"
    file.write_text(json.dumps([{**ENTRY, **change}]))
    with pytest.raises(ValueError, match=said):
        read_names(file)
    for text, why in (("{", "is not JSON"), ("{}", "must be a list"), (json.dumps([ENTRY, ENTRY]), "at most once")):
        file.write_text(text)
        with pytest.raises(ValueError, match=why):
            read_names(file)


def test_the_entry_that_mindcluster_ships_names_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shipped = {
        "ResourceType": "", "DevicePublicType": "", "DevicePublicNamePre": "", "PodConfigurationName": "",
        "_example_ResourceType": "device type identifier, values: Ascend910、Ascend310、Ascend310P",
    }  # fmt: skip
    file = tmp_path / "deviceNameCustomization.json"
    file.write_text(json.dumps([shipped]))
    assert not read_names(file)
    assert "is empty and does not count" in caplog.text


def test_a_pod_comes_in_with_internal_names() -> None:
    pod: dict[str, Any] = {
        "metadata": {"annotations": {PUBLIC: "Thinker-1,Thinker-2", "note": "Thinker-1", "predicate-time": "1"}},
        "spec": {"containers": [{
            "resources": {"limits": {PUBLIC: "2", "cpu": "1"}, "claims": []},
            "env": [
                {"name": "ASCEND_VISIBLE_DEVICES",
                 "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{PUBLIC}']"}}},
                {"name": "A", "value": "b"},
            ],
        }]},
    }  # fmt: skip
    found = NAMES.pod(pod)
    assert found["metadata"]["annotations"] == {
        "huawei.com/Ascend910": "Ascend910-1,Ascend910-2", "note": "Thinker-1", "predicate-time": "1",
    }  # fmt: skip
    container = found["spec"]["containers"][0]
    assert container["resources"] == {"limits": {"huawei.com/Ascend910": "2", "cpu": "1"}, "claims": []}
    path = container["env"][0]["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.annotations['huawei.com/Ascend910']" and container["env"][1] == {"name": "A", "value": "b"}
    assert PUBLIC in pod["metadata"]["annotations"], "what was read is not changed in place"


def test_kubelet_pods_and_reports_know_the_public_names_only() -> None:
    async def scenario() -> None:
        async with Node(names=NAMES) as node:
            assert node.kubelet.registered == [PUBLIC]
            assert node.kubelet.devices[PUBLIC] == {f"Thinker-{n}": "Healthy" for n in range(8)}
            body = node.pod("a", ["Thinker-2", "Thinker-5"], resource=PUBLIC)
            answer = await node.kubelet.admit(body, PUBLIC)
            assert answer.envs["ASCEND_VISIBLE_DEVICES"] == "2,5"
            await node.until(lambda: "huawei.com/kltDev" in node.notes("a"))
            notes = node.notes("a")
            assert notes["huawei.com/AscendReal"] == notes["huawei.com/kltDev"] == "Thinker-2,Thinker-5"
            assert json.loads(notes["vendor.com/thinker-configuration"])["devices"][1]["device_id"] == "5"
            assert not [key for key in notes if "scend910" in key or "ascend-910" in key]
            assert node.kubelet.free(PUBLIC) == {f"Thinker-{n}" for n in (0, 1, 3, 4, 6, 7)}
            node.driver.inject(6, FAULT)
            await node.until(lambda: node.kubelet.devices[PUBLIC]["Thinker-6"] == "Unhealthy")
            await node.until(lambda: node.listed("Unhealthy", PUBLIC) == ["Thinker-6"])
            assert node.listed("", PUBLIC) == [f"Thinker-{n}" for n in (0, 1, 3, 4, 7)]
            whole = json.loads(node.cluster.maps[DEVICE_NAMESPACE, DEVICE_PREFIX + NODE]["data"]["DeviceInfoCfg"])
            assert whole["CheckCode"] == check_code(whole["DeviceInfo"]) and "Ascend910" not in json.dumps(whole)
            # after a restart the books, kubelet's and the pods', are understood again
            await node.crash()
            await node.boot()
            await node.until(lambda: node.kubelet.free(PUBLIC) == {f"Thinker-{n}" for n in (0, 1, 3, 4, 7)})

    run(scenario)
