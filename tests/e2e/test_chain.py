"""The whole chain on one machine: `git push` → engine → kubelet → containerd → chips, a fault, a move, a reset.

Real are kube-apiserver with Kubernetes' controllers, etcd, kubelet, containerd, runc, Redis, Git and Prometheus, and
every process of Belay; only the chips are not, behind the driver's own C interface.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.chain_world import MAJOR, VIRTUAL_MAJOR, Chain, allowed, chain, inside
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
    pytest.mark.timeout(840),
    pytest.mark.skipif(bool(possible()), reason=f"a private host {possible()}"),
]


WHOLE, PART = "huawei.com/Ascend310P", "huawei.com/Ascend310P-4c"
CARDS = """apiVersion: belay.dev/v1alpha1
kind: NodePool
metadata: {name: inference}
spec:
  selector: {matchLabels: {accelerator: huawei-Ascend310P}}
  product: atlas-300i-pro
"""
LAYOUT = """apiVersion: belay.dev/v1alpha1
kind: VNPULayout
metadata: {name: inference}
spec:
  pool: inference
  mode: static
  chips: [{chips: [0], templates: [vir04, vir02_1c]}]
  whenBusy: wait
"""
CHAT = f"""apiVersion: apps/v1
kind: Deployment
metadata: {{name: chat, namespace: default}}
spec:
  replicas: 1
  strategy: {{type: Recreate}}
  selector: {{matchLabels: {{app: chat}}}}
  template:
    metadata: {{labels: {{app: chat}}}}
    spec:
      schedulerName: volcano
      nodeSelector: {{accelerator: huawei-Ascend310P}}
      hostNetwork: true
      terminationGracePeriodSeconds: 1
      automountServiceAccountToken: false
      containers:
        - name: chat
          image: {IMAGE}
          imagePullPolicy: Never
          env: [{{name: POD_UID, valueFrom: {{fieldRef: {{fieldPath: metadata.uid}}}}}}]
          resources: {{requests: {{{PART}: 1}}, limits: {{{PART}: 1}}}}
"""


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


@pytest.fixture
def inference(oci_programs: Sequence[Path], libdcmi: Path) -> Iterator[Chain]:
    """A server with two Atlas 300I Pro."""
    templates = [("vir04", 4.0, 12_288), ("vir02_1c", 2.0, 6_144)]
    shape = {"chips": 2, "chip_name": "310P3", "board": 0, "hbm_mb": 0, "ddr_mb": 24_576, "product": "Atlas 300I Pro"}
    with chain(oci_programs, libdcmi, **shape, aicores=8, reset_group=1, templates=templates) as made:
        # the driver makes them with the vNPUs
        made.node.host.nodes({f"vdavinci{n}": (VIRTUAL_MAJOR, n) for n in (100, 101)})
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

    # a new kubelet asks for the chips again; pods, containers and chips stay
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
    world.until("and the engine holds it back", lambda: world.value('belay_chips{state="isolated"}') == 1)
    # all eight chips of this server reset together: nothing is reset while anybody uses one
    assert [world.machine.chip(n).resets for n in range(8)] == [0] * 8

    # both jobs end in Git: two running jobs at once wait for a person, and nothing has gone before
    world.push({"desired/jobs/train.yaml": None, "desired/jobs/steady.yaml": None}, "Trained")
    release = str(world.until("the deletions wait", world.held_prune)["release"])
    assert {pod["metadata"]["uid"] for pod in world.pods()} == {pod["metadata"]["uid"] for pod in (second, steady)}
    # confirmed: their pods go, the idle server is reset, the chip is back in service
    world.push({}, f"Both are trained\n\n{release}")
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
    world.until("for the engine too", lambda: not world.value('belay_chips{state="isolated"}'))
    assert world.machine.chip(bad).resets == 1


def test_a_layout_in_git_becomes_a_part_of_a_chip_in_a_container(inference: Chain) -> None:
    world = inference
    world.start_agent()
    world.start_engine()
    world.start_prometheus()
    world.start_controllers()
    world.until("2 chips at kubelet", lambda: world.allocatable(WHOLE) == ("2", "2"))

    # the engine orders the cut, the agent makes it, kubelet offers the parts, and a Deployment's pod gets one
    files = {"desired/pools/inference.yaml": CARDS, "desired/layouts/inference.yaml": LAYOUT}
    tip = world.push(files | {"desired/inference/chat.yaml": CHAT}, "Chat")
    world.until("the revision is in force", lambda: world.applied() == tip)
    pod = world.running(world.until("the pod", lambda: [one["metadata"]["name"] for one in world.pods()])[0])
    assert [world.allocatable(name)[1] for name in (WHOLE, PART, f"{WHOLE}-2c.1cpu")] == ["1", "1", "1"]
    assert vnpus(world) == [(100, "vir04"), (101, "vir02_1c")]
    assert pod["metadata"]["annotations"]["huawei.com/AscendReal"] == "Ascend310P-4c-100-0"
    process = inside(pod)
    found = {entry.name for entry in (process / "root/dev").iterdir()}
    assert {name for name in found if "davinci" in name} == {"davinci100", "davinci_manager"}
    assert {"devmm_svm", "hisi_hdc"} <= found
    wanted = {f"c {VIRTUAL_MAJOR}:100 rwm", *(f"c {MAJOR}:{n} rwm" for n in (200, 201, 202))}
    assert allowed(world.node.host, process) in (wanted, set())
    seen = world.node.environment(pod)
    assert (seen["ASCEND_VISIBLE_DEVICES"], seen["ASCEND_RUNTIME_OPTIONS"]) == ("100", "VIRTUAL")

    # an agent that is killed and comes back, as in an upgrade, neither loses nor cuts anything
    before = registrations(world)
    world.children["agent"].kill()
    world.start_agent()
    world.until("the new agent is known", lambda: registrations(world) >= before + 3)
    world.until("the parts are offered again", lambda: world.allocatable(PART) == ("1", "1"))
    assert vnpus(world) == [(100, "vir04"), (101, "vir02_1c")]
    after = world.node.get("pod", pod["metadata"]["name"])
    assert after["metadata"]["uid"] == pod["metadata"]["uid"] and inside(after) == process
    # the exporter lists chips at its start, then every minute
    about = f'vnpu_pod_total_memory{{pod_name="{pod["metadata"]["name"]}",v_dev_id="100"}}'
    world.until("Prometheus names the pod on its vNPU", lambda: world.query(about))

    # without the layout the chip is cut while no container uses a part of it, and only then whole again
    world.push({"desired/layouts/inference.yaml": None}, "No more parts")
    world.until("the free part is given back or kept", lambda: world.applied() == world.repo.head())
    assert (100, "vir04") in vnpus(world) and inside(after) == process
    world.push({"desired/inference/chat.yaml": None}, "No more chat")
    world.until("the pod is gone", lambda: not world.pods())
    world.until("two whole chips again", lambda: world.allocatable(WHOLE) == ("2", "2"))
    assert vnpus(world) == []


def vnpus(world: Chain) -> list[tuple[int, str]]:
    """(id, template) of every vNPU that the driver holds."""
    rows = [row for n in range(world.machine.state.chips) for row in world.machine.chip(n).vdevs]
    return sorted((row.id, row.name.decode()) for row in rows if row.id)
