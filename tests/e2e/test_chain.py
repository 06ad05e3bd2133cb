"""The whole chain on one machine: `git push` → engine → kubelet → containerd → chips, a fault, a move, a reset, Prometheus.

Real are kube-apiserver, etcd, kubelet, containerd, runc, Redis, Git and Prometheus, and every process of Belay; the chips
are behind the driver's own C interface.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.chain_world import MAJOR, Chain, allowed, chain, inside
from tests.node_server import IMAGE, NODE
from tests.runtime_host import libdcmi, oci_programs, possible

__all__ = ["libdcmi", "oci_programs"]

RESOURCE = "huawei.com/Ascend910"
FAULT = "80C98001"
LABELS = ("accelerator-type=module-910b-8", "host-arch=huawei-x86")
POOL = """apiVersion: belay.dev/v1alpha1
kind: NodePool
metadata: {name: training}
spec:
  selector: {matchLabels: {accelerator: huawei-Ascend910, accelerator-type: module-910b-8}}
  product: atlas-800t-a2
"""

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("real-node"),
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(possible()), reason=f"a private host {possible()}"),
]


def job(name: str, chips: int, port: int = 2222) -> str:
    """An AscendJob of one pod, as users of MindCluster write it."""
    return f"""apiVersion: mindxdl.gitee.com/v1
kind: AscendJob
metadata:
  name: {name}
  namespace: default
  labels: {{framework: pytorch, ring-controller.atlas: ascend-910b, fault-scheduling: force}}
spec:
  schedulerName: volcano
  runPolicy: {{schedulingPolicy: {{minAvailable: 1, queue: default}}}}
  successPolicy: AllWorkers
  replicaSpecs:
    Master:
      replicas: 1
      restartPolicy: Never
      template:
        metadata: {{labels: {{ring-controller.atlas: ascend-910b}}}}
        spec:
          nodeSelector: {{accelerator-type: module-910b-8, host-arch: huawei-x86}}
          hostNetwork: true
          terminationGracePeriodSeconds: 1
          automountServiceAccountToken: false
          containers:
            - name: ascend
              image: {IMAGE}
              imagePullPolicy: Never
              env:
                - {{name: POD_UID, valueFrom: {{fieldRef: {{fieldPath: metadata.uid}}}}}}
              ports: [{{name: ascendjob-port, containerPort: {port}}}]
              resources: {{requests: {{{RESOURCE}: {chips}}}, limits: {{{RESOURCE}: {chips}}}}}
"""


@pytest.fixture
def training(oci_programs: Sequence[Path], libdcmi: Path) -> Iterator[Chain]:
    """An Atlas 800T A2."""
    with chain(oci_programs, libdcmi) as made:
        yield made


def chips_of(pod: dict[str, Any]) -> list[int]:
    """The chips a pod was really given, as the device plugin wrote them down."""
    return sorted(
        int(name.rpartition("-")[2]) for name in pod["metadata"]["annotations"]["huawei.com/AscendReal"].split(",")
    )


def check_container(world: Chain, pod: dict[str, Any]) -> None:
    """Inside is exactly what was granted: device nodes, managers, mounts, environment, permissions."""
    chips = chips_of(pod)
    notes = pod["metadata"]["annotations"]
    # the engine chose them, kubelet and the plugin gave them
    assert notes[RESOURCE] == notes["huawei.com/AscendReal"]
    configuration = json.loads(notes["ascend.kubectl.kubernetes.io/ascend-910-configuration"])
    assert [int(device["device_id"]) for device in configuration["devices"]] == chips
    process = inside(pod)
    found = {entry.name for entry in (process / "root/dev").iterdir()}
    ours = {name for name in found if name.startswith(("davinci", "vdavinci", "devmm", "hisi"))}
    assert ours == {f"davinci{n}" for n in chips} | {"davinci_manager", "devmm_svm", "hisi_hdc"}
    wanted = {f"c {MAJOR}:{n} rwm" for n in (*chips, 200, 201, 202)}
    assert allowed(world.node.host, process) in (wanted, set())
    seen = world.node.environment(pod)
    named = {int(part.rpartition("-")[2]) for part in seen["ASCEND_VISIBLE_DEVICES"].split(",")}
    assert named == set(chips)
    assert seen["ASCEND_DOCKER_RUNTIME"] == "True"
    assert seen["LD_LIBRARY_PATH"].startswith("/usr/local/Ascend/driver/lib64/driver")
    assert (seen["WORLD_SIZE"], seen["LOCAL_WORLD_SIZE"], seen["RANK"]) == (str(len(chips)), str(len(chips)), "0")
    assert (process / "root/usr/local/Ascend/driver/lib64/driver/libdriver.so").read_text() == "driver"
    assert " /usr/local/Ascend/driver/lib64 ro,nosuid" in (process / "mountinfo").read_text()


def registrations(world: Chain) -> int:
    """How often a device plugin has registered, by the logs of all kubelets of this node."""
    return (
        (world.folder / "kubelet.log").read_text(errors="replace").count("Got registration request from device plugin")
    )


def owners(world: Chain) -> dict[int, tuple[str, str]]:
    """Which pod's container each chip is attributed to, by Prometheus."""
    found = world.query('npu_chip_info_health_status{pod_name!=""}')
    return {int(one["metric"]["id"]): (one["metric"]["namespace"], one["metric"]["pod_name"]) for one in found}


def shown(world: Chain, *pods: dict[str, Any]) -> None:
    """Prometheus attributes exactly the chips of these pods to them."""
    wanted = {chip: ("default", pod["metadata"]["name"]) for pod in pods for chip in chips_of(pod)}
    world.until("Prometheus names each chip's pod", lambda: owners(world) == wanted)


def test_from_a_push_to_chips_through_a_fault_and_back(training: Chain) -> None:
    world = training
    world.start_agent("-hotReset=2")
    world.start_engine()
    world.start_prometheus()
    world.start_controllers()
    world.until("8 chips at kubelet", lambda: world.allocatable(RESOURCE) == ("8", "8"))
    world.node.kubectl("label", "node", NODE, *LABELS)

    # a push becomes pods with chips
    files = {"desired/pools/training.yaml": POOL, "desired/jobs/train.yaml": job("train", 4)}
    tip = world.push(files | {"desired/jobs/steady.yaml": job("steady", 2, 2223)}, "Train")
    world.until("the revision is in force", lambda: world.applied() == tip)
    first, steady = world.running("train-master-0"), world.running("steady-master-0")
    given = chips_of(first)
    assert len(given) == 4 and len(chips_of(steady)) == 2 and not set(given) & set(chips_of(steady))
    for pod, name in ((first, "train"), (steady, "steady")):
        (owner,) = pod["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == ("AscendJob", name)
        check_container(world, pod)
        # kubelet, which takes any of its ids, was led to the very same chips
        notes = pod["metadata"]["annotations"]
        assert notes["huawei.com/kltDev"] == notes["huawei.com/AscendReal"]
    shown(world, first, steady)
    assert world.value("machine_npu_nums") == 8 and world.value("machine_healthy_npu_nums") == 8

    # a new kubelet asks for the chips anew; pods, containers and chips stay
    before, process = registrations(world), inside(first)
    world.node.stop_kubelet()
    world.node.start_kubelet()
    world.until("the agent is known to the new kubelet", lambda: registrations(world) > before)
    world.until("8 chips at the new kubelet", lambda: world.allocatable(RESOURCE) == ("8", "8"))
    for pod in (first, steady):
        after = world.node.get("pod", pod["metadata"]["name"])
        assert after["metadata"]["uid"] == pod["metadata"]["uid"] and chips_of(after) == chips_of(pod)
        assert after["status"]["containerStatuses"][0]["restartCount"] == 0
    assert inside(first) == process

    # a fault on a chip in use: reported, isolated, and the job moves to the chips that are left
    bad = given[1]
    world.machine.raise_code(bad, FAULT)
    world.machine.chip(bad).health = 3
    world.until("the report names the chip", lambda: world.listed(RESOURCE, "-Unhealthy") == [f"Ascend910-{bad}"])
    second = world.running("train-master-0", but=first["metadata"]["uid"])
    assert len(chips_of(second)) == 4 and bad not in chips_of(second)
    check_container(world, second)
    check_container(world, world.node.get("pod", "steady-master-0"))
    world.until("kubelet has one chip less", lambda: world.allocatable(RESOURCE) == ("8", "7"))
    shown(world, second, steady)
    world.until("and the bad chip", lambda: world.value(f'npu_chip_info_health_status{{id="{bad}"}}') == 0)
    world.until("and its code", lambda: world.value(f'npu_chip_info_error_code{{id="{bad}"}}') == int(FAULT, 16))
    world.until("and counts it", lambda: world.value("machine_unhealthy_npu_nums") == 1)
    # all eight chips of this server reset together: nothing is reset while anybody uses one
    assert [world.machine.chip(n).resets for n in range(8)] == [0] * 8

    # both jobs end in Git: their pods go, the idle server is reset, the chip is back in service
    world.push({"desired/jobs/train.yaml": None, "desired/jobs/steady.yaml": None}, "Trained")
    world.until("the pods are gone", lambda: not world.pods())
    world.until("8 chips again", lambda: world.allocatable(RESOURCE) == ("8", "8"))
    assert world.machine.chip(bad).resets == 1
    assert world.listed(RESOURCE, "-Unhealthy") == []

    # and a job can have the whole server
    world.push({"desired/jobs/whole.yaml": job("whole", 8)}, "Train on the whole server")
    whole = world.running("whole-master-0")
    assert chips_of(whole) == list(range(8))
    check_container(world, whole)
    shown(world, whole)
    world.until("and all chips are well", lambda: world.value("machine_healthy_npu_nums") == 8)
    assert world.machine.chip(bad).resets == 1
