"""A real kubelet with containerd and runc, the agent with the driver's C interface, and the engine's own decisions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from belay.agents.drivers.standin.build import build
from belay.agents.drivers.standin.state import Standin
from belay.engine.model.cluster import Orders, ResetOrder
from belay.engine.wire.orders import build_orders
from tests.node_server import IMAGE, NODE, RealNode, real_node

__all__ = ["real_node"]

ROOT = Path(__file__).parents[2]
RESOURCE = "huawei.com/Ascend910"
FAULT = "80C98001"

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("real-node"), pytest.mark.timeout(420)]


class Agent:
    """The agent as a process of its own, with the stand-in driver."""

    def __init__(self, node: RealNode) -> None:
        self.node = node
        self.library = build(node.folder / "driver")
        self.machine = Standin.create(node.folder / "driver" / "state")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.node.folder / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "belay.agents.daemon", "--node", NODE, "--driver", f"dcmi:{self.library}",
                    "--state-dir", str(self.node.folder / "agent"), "--kubeconfig", str(self.node.kubeconfig),
                    "--scale", "0.05", "--device-plugin", "-volcanoType=true", "--kubelet-dir", str(self.node.plugins),
                    "--pod-resources", str(self.node.pod_resources), "-deviceResetTimeout=60",
                ],
                stdout=log, stderr=log, cwd=ROOT,
                env={
                    **os.environ, "BELAY_SIM_DCMI_STATE": str(self.machine.file), "HOST_IP": "127.0.0.1",
                    "ASCEND_DOCKER_RUNTIME": "True",
                },
            )  # fmt: skip

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(60)
        self.process = None
        return code


@pytest.fixture(scope="module")
def agent(real_node: RealNode) -> Iterator[Agent]:
    found = Agent(real_node)
    found.start()
    try:
        real_node.until("8 chips", lambda: real_node.devices(RESOURCE) == ("8", "8"))
        real_node.kubectl("label", "node", NODE, "accelerator-type=module-910b-8")
        yield found
    finally:
        if found.process is not None:
            found.stop()


def create(node: RealNode, name: str, count: int) -> None:
    body = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "schedulerName": "belay", "restartPolicy": "Never", "hostNetwork": True,
            "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "nodeSelector": {"accelerator-type": "module-910b-8"},
            "containers": [{
                "name": "c", "image": IMAGE, "imagePullPolicy": "Never",
                "resources": {"limits": {RESOURCE: str(count)}, "requests": {RESOURCE: str(count)}},
            }],
        },
    }  # fmt: skip
    node.kubectl("create", "-f", "-", given=body)


def bind(node: RealNode) -> dict[str, dict[str, Any]]:
    """Let the engine plan on the live cluster and carry out its bindings; pod → its action.

    Kubelet reports its devices every few seconds; until it agrees with the device report the engine waits.
    """
    ends = time.monotonic() + 60
    while True:
        done = subprocess.run(
            [sys.executable, "-m", "belay.engine.cli", "plan", "--cluster", "live",
             "--kubeconfig", str(node.kubeconfig),
             "-o", "json"],
            capture_output=True, text=True, timeout=120, cwd=ROOT, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        plan = json.loads(done.stdout)
        actions = {a["pod"]: a for a in plan["actions"] if a["kind"] == "BindPod"}
        if actions or time.monotonic() > ends:
            break
    assert actions, json.dumps(plan["pending"])
    for name, action in actions.items():
        send(node, name, action["annotations"])
    return actions


def send(node: RealNode, name: str, annotations: dict[str, str]) -> None:
    body = {
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "annotations": annotations},
        "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
    }  # fmt: skip
    node.kubectl("create", "--raw", f"/api/v1/namespaces/default/pods/{name}/binding", "-f", "-", given=body)


def running(node: RealNode, name: str) -> dict[str, Any]:
    def look() -> Any:
        pod = node.get("pod", name)
        assert pod["status"].get("phase") != "Failed", pod["status"]
        return pod if "huawei.com/kltDev" in pod["metadata"]["annotations"] and node.environment(pod) else None

    return dict(node.until(f"pod {name}", look))


def remove(node: RealNode, *names: str) -> None:
    node.kubectl("delete", "pod", *names, "--grace-period=0", "--force", "--wait=true", check=False)


def listed(node: RealNode, kind: str = "") -> list[str]:
    """A list of the device report: the free chips, or those of a kind."""
    text = node.get("cm", f"mindx-dl-deviceinfo-{NODE}", "kube-system")["data"]["DeviceInfoCfg"]
    return [name for name in json.loads(text)["DeviceInfo"]["DeviceList"][RESOURCE + kind].split(",") if name]


def given(node: RealNode, pod: dict[str, Any]) -> list[str]:
    return [f"Ascend910-{n}" for n in node.environment(pod)["ASCEND_VISIBLE_DEVICES"].split(",")]


def test_from_a_pod_of_the_engine_to_the_environment_of_its_container(real_node: RealNode, agent: Agent) -> None:
    create(real_node, "first", 2)
    action = bind(real_node)["first"]
    pod = running(real_node, "first")
    assert given(real_node, pod) == action["chips"]
    notes = pod["metadata"]["annotations"]
    assert notes["huawei.com/AscendReal"].split(",") == action["chips"]
    # kubelet's own ids are the chips' too
    assert notes["huawei.com/kltDev"] == notes["huawei.com/AscendReal"]
    assert notes["predicate-time"] == "18446744073709551615"
    remove(real_node, "first")


def test_a_fault_takes_a_chip_away_and_a_reset_brings_it_back(real_node: RealNode, agent: Agent) -> None:
    agent.machine.raise_code(3, FAULT)
    real_node.until("7 chips", lambda: real_node.devices(RESOURCE) == ("8", "7"))
    # kubelet hears of it at once, a report is written once a second at most
    real_node.until("the report", lambda: listed(real_node, "-Unhealthy") == ["Ascend910-3"])
    create(real_node, "seven", 7)
    assert "Ascend910-3" not in bind(real_node)["seven"]["chips"]
    running(real_node, "seven")
    remove(real_node, "seven")
    now = time.time_ns() // 1_000_000
    reset = {n: ResetOrder(epoch=1, group=tuple(range(8)), reason="RestartNPU", not_before_ms=0) for n in range(8)}
    orders = Orders(
        node=NODE, resource_version="", generation=1, revision="r", policy_digest="", issued_ms=now,
        not_after_ms=now + 900_000, isolate={}, resets=reset, vnpu_epoch=0, vnpu_layout={},
    )  # fmt: skip
    real_node.kubectl("create", "-f", "-", given=build_orders(orders, "Ascend910-"))
    real_node.until("8 chips again", lambda: real_node.devices(RESOURCE) == ("8", "8"), 90)
    assert agent.machine.chip(3).resets == 1


def test_three_equal_pods_out_of_order_and_a_fault_on_a_chip_under_another_id(
    real_node: RealNode, agent: Agent
) -> None:
    names = ("one", "two", "three")
    for name in names:
        create(real_node, name, 1)
    for time_, name in ((30, "three"), (10, "one"), (20, "two")):
        send(real_node, name, {RESOURCE: f"Ascend910-{names.index(name) + 4}", "predicate-time": str(time_)})
    pods = {name: running(real_node, name) for name in names}
    real = {name: given(real_node, pod) for name, pod in pods.items()}
    assert sorted(name for names_ in real.values() for name in names_) == ["Ascend910-4", "Ascend910-5", "Ascend910-6"]
    for name, pod in pods.items():
        assert pod["metadata"]["annotations"]["huawei.com/AscendReal"].split(",") == real[name]
    agent.machine.raise_code(5, FAULT)
    real_node.until("the report", lambda: listed(real_node, "-Unhealthy") == ["Ascend910-5"])
    # the chip is in use, so none of the free ones is lost by it
    assert real_node.devices(RESOURCE) == ("8", "8")
    assert len(listed(real_node)) == 5
    create(real_node, "rest", 5)
    assert sorted(bind(real_node)["rest"]["chips"]) == [f"Ascend910-{n}" for n in (0, 1, 2, 3, 7)]
    running(real_node, "rest")
    remove(real_node, *names, "rest")
    real_node.until("7 chips", lambda: real_node.devices(RESOURCE)[1] == "7")
    agent.machine.clear_code(5, FAULT)
    real_node.until("8 chips", lambda: real_node.devices(RESOURCE)[1] == "8")


def test_a_chip_that_a_live_pod_has_is_refused_by_name(real_node: RealNode, agent: Agent) -> None:
    create(real_node, "holder", 1)
    send(real_node, "holder", {RESOURCE: "Ascend910-2", "predicate-time": "5"})
    running(real_node, "holder")
    create(real_node, "thief", 2)
    send(real_node, "thief", {RESOURCE: "Ascend910-2,Ascend910-3", "predicate-time": "6"})
    pod = real_node.until(
        "the refusal", lambda: (p := real_node.get("pod", "thief"))["status"].get("phase") == "Failed" and p
    )
    assert pod["status"]["reason"] == "UnexpectedAdmissionError"
    assert "Ascend910-2 is held by pod default/holder" in pod["status"]["message"]
    remove(real_node, "holder", "thief")


def test_pods_keep_their_chips_when_kubelet_and_agent_restart(real_node: RealNode, agent: Agent) -> None:
    create(real_node, "stays", 3)
    send(real_node, "stays", {RESOURCE: "Ascend910-1,Ascend910-2,Ascend910-3", "predicate-time": "7"})
    running(real_node, "stays")
    agent.stop(signal.SIGKILL)
    (real_node.folder / "agent" / "grants").unlink()
    real_node.stop_kubelet()
    real_node.start_kubelet()
    real_node.until("kubelet without chips", lambda: real_node.devices(RESOURCE)[1] == "0")
    agent.start()
    real_node.until("8 chips", lambda: real_node.devices(RESOURCE) == ("8", "8"))
    create(real_node, "thief", 1)
    send(real_node, "thief", {RESOURCE: "Ascend910-3", "predicate-time": "8"})
    real_node.until("the refusal", lambda: real_node.get("pod", "thief")["status"].get("phase") == "Failed")
    assert "Ascend910-3 is held by pod default/stays" in real_node.get("pod", "thief")["status"]["message"]
    assert real_node.get("pod", "stays")["status"]["phase"] == "Running"
    create(real_node, "rest", 5)
    assert sorted(bind(real_node)["rest"]["chips"]) == [f"Ascend910-{n}" for n in (0, 4, 5, 6, 7)]
    running(real_node, "rest")
    remove(real_node, "stays", "thief", "rest")


def test_the_agent_ends_in_order(real_node: RealNode, agent: Agent) -> None:
    assert agent.stop() == 0
    assert not (real_node.plugins / "Ascend910.sock").exists()
    real_node.until("no chips to have", lambda: real_node.devices(RESOURCE)[1] == "0")
