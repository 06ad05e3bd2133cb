"""Every kubectl that the machine has, against the sandbox's API server: what people do all day."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.api_client import MERGE, Client, Sandbox
from tests.needs import lacking

pytestmark = pytest.mark.real_time

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 90


def kubectls() -> list[str]:
    """Return `kubectl` and every `kubectl.1.NN` on PATH or beside the file that `kubectl` really is."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    if found := shutil.which("kubectl"):
        folders.append(Path(found).resolve().parent)
    programs: dict[str, str] = {}
    for folder in folders:
        for path in sorted(folder.glob("kubectl*")):
            if re.fullmatch(r"kubectl(\.1\.\d+)?", path.name) and os.access(path, os.X_OK):
                programs.setdefault(path.name, str(path))
    return [programs[name] for name in sorted(programs)]


class Kubectl:
    """One kubectl with a folder of its own; old ones leave validation of what they send to the server."""

    def __init__(self, program: str, sandbox: Sandbox, folder: Path) -> None:
        self._program = program
        self.folder = folder
        kubeconfig = folder / "kubeconfig"
        sandbox.server.write_kubeconfig(kubeconfig)
        self._environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "KUBECONFIG": str(kubeconfig)}
        self.api: Client = sandbox.client()
        version = json.loads(self("version", "--client", "-o", "json"))["clientVersion"]
        self.minor = int(re.sub(r"\D.*", "", version["minor"]))
        self._validation = [] if self.minor >= 29 else ["--validate=false"]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start it in the background."""
        return subprocess.Popen(
            [self._program, *arguments],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str, text: str | None = None) -> tuple[int, str]:
        """Run it to its end; returns exit code and everything it said."""
        if arguments[0] in ("apply", "create") and "-f" in arguments:
            arguments = (*arguments, *self._validation)
        process = self.start(*arguments)
        said, _ = process.communicate(text, timeout=TIMEOUT_SECONDS)
        return process.returncode, said

    def __call__(self, *arguments: str, text: str | None = None) -> str:
        """Run it and expect success."""
        code, said = self.run(*arguments, text=text)
        assert code == 0, f"kubectl {' '.join(arguments)}: {said}"
        return said

    def refused(self, *arguments: str, text: str | None = None) -> str:
        """Run it and expect failure."""
        code, said = self.run(*arguments, text=text)
        assert code != 0, f"kubectl {' '.join(arguments)} worked: {said}"
        return said

    def json(self, *arguments: str) -> Any:
        """Run it with -o json and return what it printed."""
        return json.loads(self(*arguments, "-o", "json"))


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox()
    client = made.client()
    assert client.send("GET", "/readyz")[0] == 200
    yield made
    made.close()


@pytest.fixture(scope="module", params=kubectls() or [None], ids=lambda p: Path(p).name if p else "none")
def kubectl(request: pytest.FixtureRequest, sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    if request.param is None:
        lacking("no kubectl on PATH: make test-packages")
    return Kubectl(request.param, sandbox, tmp_path_factory.mktemp("kubectl"))


@pytest.fixture
def space(kubectl: Kubectl, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, deleted with kubectl, which waits until it is empty."""
    name = f"k{kubectl.minor}-{os.urandom(3).hex()}"
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name, "--timeout=60s")


DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: main, image: "main:1", env: [{name: A, value: "1"}]}
      - {name: side, image: "side:1"}
"""


def test_create_get_describe_label_delete(kubectl: Kubectl, space: str) -> None:
    kubectl("create", "configmap", "a", "--from-literal=x=1", "-n", space)
    shown = kubectl("get", "cm", "-n", space)
    assert re.search(r"NAME\s+DATA\s+AGE\na\s+1\s+\d+s", shown)
    assert "x:" in kubectl("describe", "configmap", "a", "-n", space)
    kubectl("label", "cm", "a", "-n", space, "team=red")
    kubectl("annotate", "cm", "a", "-n", space, "note=hello")
    assert kubectl("get", "cm", "-l", "team=red", "-o", "name", "-n", space) == "configmap/a\n"
    assert "already exists" in kubectl.refused("create", "configmap", "a", "-n", space)
    assert kubectl("get", "cm", "-A", "-o", "jsonpath={.items[?(@.metadata.name=='a')].data.x}").strip() == "1"
    kubectl("delete", "cm", "a", "-n", space)
    assert "NotFound" in kubectl.refused("get", "cm", "a", "-n", space)


def assert_differs(kubectl: Kubectl, space: str, changed: str) -> None:
    code, said = kubectl.run("diff", "-n", space, "-f", "-", text=changed)
    assert code == 1
    assert re.search(r"^-\s+(- )?image: side:1", said, re.MULTILINE)
    assert re.search(r"^\+.*image: main:2", said, re.MULTILINE)


def test_client_side_apply_and_diff(kubectl: Kubectl, space: str) -> None:
    assert "created" in kubectl("apply", "-n", space, "-f", "-", text=DEPLOYMENT)
    assert "unchanged" in kubectl("apply", "-n", space, "-f", "-", text=DEPLOYMENT)
    changed = DEPLOYMENT.replace("main:1", "main:2").replace(', env: [{name: A, value: "1"}]', "")
    changed = changed.replace('      - {name: side, image: "side:1"}\n', "")
    assert_differs(kubectl, space, changed)
    assert "configured" in kubectl("apply", "-n", space, "-f", "-", text=changed)
    containers = kubectl.json("get", "deploy", "web", "-n", space)["spec"]["template"]["spec"]["containers"]
    assert [(c["name"], c["image"], "env" in c) for c in containers] == [("main", "main:2", False)]
    kubectl("diff", "-n", space, "-f", "-", text=changed)


def test_server_side_apply_and_its_conflicts(kubectl: Kubectl, space: str) -> None:
    def manifest(image: str) -> str:
        return DEPLOYMENT.replace("main:1", image)

    kubectl("apply", "--server-side", "--field-manager=one", "-n", space, "-f", "-", text=DEPLOYMENT)
    said = kubectl.refused(
        "apply", "--server-side", "--field-manager=two", "-n", space, "-f", "-", text=manifest("main:2")
    )
    assert 'conflict with "one"' in said
    assert '.spec.template.spec.containers[name="main"].image' in said
    forced = ("apply", "--server-side", "--force-conflicts", "--field-manager=two", "-n", space, "-f", "-")
    kubectl(*forced, text=manifest("main:2"))
    shown = ("--show-managed-fields",) if kubectl.minor >= 21 else ()  # older ones always show them
    found = kubectl.json("get", "deploy", "web", "-n", space, *shown)
    assert {entry["manager"] for entry in found["metadata"]["managedFields"]} == {"one", "two"}
    assert found["spec"]["template"]["spec"]["containers"][0]["image"] == "main:2"


def test_client_side_apply_can_become_server_side(kubectl: Kubectl, space: str) -> None:
    kubectl("apply", "-n", space, "-f", "-", text=DEPLOYMENT)
    kubectl("apply", "--server-side", "-n", space, "-f", "-", text=DEPLOYMENT)
    if kubectl.minor >= 26:  # that apply took the fields over from the old manager; older ones leave them there
        kubectl("apply", "--server-side", "-n", space, "-f", "-", text=DEPLOYMENT.replace("main:1", "main:3"))
        shown = kubectl.json("get", "deploy", "web", "-n", space)
        assert shown["spec"]["template"]["spec"]["containers"][0]["image"] == "main:3"


def test_patch_scale_rollout(kubectl: Kubectl, space: str) -> None:
    kubectl("apply", "-n", space, "-f", "-", text=DEPLOYMENT)
    kubectl(
        "patch",
        "deploy",
        "web",
        "-n",
        space,
        "-p",
        '{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"main:4"}]}}}}',
    )
    kubectl("patch", "deploy", "web", "-n", space, "--type=merge", "-p", '{"spec":{"replicas":5}}')
    operations = '[{"op":"replace","path":"/spec/minReadySeconds","value":3}]'
    kubectl.refused("patch", "deploy", "web", "-n", space, "--type=json", "-p", operations)
    kubectl("patch", "deploy", "web", "-n", space, "--type=json", "-p", operations.replace("replace", "add"))
    kubectl("scale", "deploy", "web", "-n", space, "--replicas=3")
    kubectl("set", "image", "deploy/web", "side=side:9", "-n", space)
    spec = kubectl.json("get", "deploy", "web", "-n", space)["spec"]
    images = [container["image"] for container in spec["template"]["spec"]["containers"]]
    assert (images, spec["replicas"], spec["minReadySeconds"]) == (["main:4", "side:9"], 3, 3)
    waiting = kubectl.start("rollout", "status", "deploy/web", "-n", space, "--timeout=60s")
    live = kubectl.json("get", "deploy", "web", "-n", space)
    status = {
        "observedGeneration": live["metadata"]["generation"],
        "replicas": 3,
        "updatedReplicas": 3,
        "readyReplicas": 3,
        "availableReplicas": 3,
    }
    kubectl.api.send("PATCH", f"/apis/apps/v1/namespaces/{space}/deployments/web/status", {"status": status}, MERGE)
    said, _ = waiting.communicate(timeout=TIMEOUT_SECONDS)
    assert waiting.returncode == 0, said
    assert "successfully rolled out" in said
    assert re.search(r"web\s+3/3\s+3\s+3", kubectl("get", "deploy", "-n", space))


POD = """
apiVersion: v1
kind: Pod
metadata: {name: p, annotations: {sandbox.belay.dev/log: "hello from p"}}
spec: {containers: [{name: c, image: "busybox:1", resources: {limits: {huawei.com/Ascend910: 8}}}]}
"""


def bound(kubectl: Kubectl, space: str, name: str = "p") -> None:
    binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": "n1"}}
    assert kubectl.api.send("POST", f"/api/v1/namespaces/{space}/pods/{name}/binding", binding)[0] == 201


def test_pods_wait_logs_and_graceful_deletion(kubectl: Kubectl, space: str) -> None:
    kubectl("create", "-n", space, "-f", "-", text=POD)
    bound(kubectl, space)
    waiting = kubectl.start("wait", "pod/p", "-n", space, "--for=condition=Ready", "--timeout=60s")
    ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    path = f"/api/v1/namespaces/{space}/pods/p"
    kubectl.api.send("PATCH", f"{path}/status", ready, MERGE)
    said, _ = waiting.communicate(timeout=TIMEOUT_SECONDS)
    assert (waiting.returncode, "condition met" in said) == (0, True), said
    assert kubectl("logs", "p", "-n", space) == "hello from p\n"
    assert re.search(r"p\s+0/1\s+Running\s+0\s+\S+\s+<none>\s+n1", kubectl("get", "pods", "-o", "wide", "-n", space))
    assert "huawei.com/Ascend910:  8" in kubectl("describe", "pod", "p", "-n", space)
    deleting = kubectl.start("delete", "pod", "p", "-n", space, "--timeout=60s")
    assert kubectl.api.until(path, lambda _, pod: "deletionTimestamp" in pod["metadata"])
    assert "Terminating" in kubectl("get", "pod", "p", "-n", space)
    kubectl.api.send("DELETE", path, {"gracePeriodSeconds": 0})
    said, _ = deleting.communicate(timeout=TIMEOUT_SECONDS)
    assert deleting.returncode == 0, said


def test_watch_shows_changes_as_they_happen(kubectl: Kubectl, space: str) -> None:
    kubectl("create", "configmap", "a", "-n", space)
    watching = kubectl.start("get", "cm", "-n", space, "-w", "--output-watch-events")
    lines: list[str] = []

    def collect() -> None:
        assert watching.stdout is not None
        for line in watching.stdout:
            lines.append(line)

    reader = threading.Thread(target=collect, daemon=True)
    reader.start()

    def saw(pattern: str) -> bool:
        ends = time.monotonic() + 60
        while time.monotonic() < ends:
            if any(re.search(pattern, line) for line in lines):
                return True
            time.sleep(0.02)
        return False

    try:
        assert saw(r"^ADDED\s+a\s+0"), lines
        kubectl("patch", "cm", "a", "-n", space, "-p", '{"data":{"k":"v"}}')
        assert saw(r"^MODIFIED\s+a\s+1"), lines
        kubectl("delete", "cm", "a", "-n", space)
        assert saw(r"^DELETED\s+a\s+1"), lines
    finally:
        watching.terminate()
        watching.wait(60)
        reader.join(60)


def test_wait_for_deletion_and_finalizers(kubectl: Kubectl, space: str) -> None:
    kubectl("create", "configmap", "held", "-n", space)
    kubectl("patch", "cm", "held", "-n", space, "--type=merge", "-p", '{"metadata":{"finalizers":["a.b/c"]}}')
    kubectl("delete", "cm", "held", "-n", space, "--wait=false")
    waiting = kubectl.start("wait", "cm/held", "-n", space, "--for=delete", "--timeout=60s")
    kubectl("patch", "cm", "held", "-n", space, "--type=json", "-p", '[{"op":"remove","path":"/metadata/finalizers"}]')
    said, _ = waiting.communicate(timeout=TIMEOUT_SECONDS)
    if kubectl.minor < 24 and "no matching resources found" in said:
        return  # it looked for the object only after it was gone, which old kubectl calls an error
    assert waiting.returncode == 0, said


def test_cascades(kubectl: Kubectl, space: str) -> None:
    kubectl("create", "-n", space, "-f", "-", text=POD)
    job = kubectl("create", "job", "j", "--image=x", "-n", space)
    assert "created" in job
    owner = kubectl.json("get", "job", "j", "-n", space)["metadata"]
    reference = [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": owner["uid"]}]
    kubectl.api.send("PATCH", f"/api/v1/namespaces/{space}/pods/p", {"metadata": {"ownerReferences": reference}}, MERGE)
    kubectl("delete", "job", "j", "-n", space, "--cascade=foreground", "--timeout=60s")
    assert kubectl.api.send("GET", f"/api/v1/namespaces/{space}/pods/p")[0] == 404


def test_nodes_are_cordoned_and_drained(kubectl: Kubectl, space: str) -> None:
    node = f"node-{space}"
    status = {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1.29.0"}}
    kubectl.api.send("POST", "/api/v1/nodes", {"metadata": {"name": node}, "status": status})
    assert re.search(rf"{node}\s+Ready\s+<none>\s+\S+\s+v1.29.0", kubectl("get", "nodes"))
    kubectl("create", "-n", space, "-f", "-", text=POD)
    binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": node}}
    kubectl.api.send("POST", f"/api/v1/namespaces/{space}/pods/p/binding", binding)
    draining = kubectl.start("drain", node, "--force", "--timeout=60s")
    path = f"/api/v1/namespaces/{space}/pods/p"
    assert kubectl.api.until(path, lambda _, pod: "deletionTimestamp" in pod["metadata"])
    kubectl.api.send("DELETE", path, {"gracePeriodSeconds": 0})
    said, _ = draining.communicate(timeout=TIMEOUT_SECONDS)
    assert draining.returncode == 0, said
    assert "SchedulingDisabled" in kubectl("get", "node", node)
    assert "Unschedulable:      true" in kubectl("describe", "node", node)
    kubectl("uncordon", node)
    kubectl("delete", "node", node)


MADE = [
    ("namespace", "made"),
    ("configmap", "made", "--from-literal=a=1"),
    ("secret", "generic", "made", "--from-literal=a=1"),
    ("serviceaccount", "made"),
    ("deployment", "made", "--image=i:1", "--replicas=0", "--port=80"),
    ("job", "made", "--image=i:1", "--", "sleep", "1"),
    ("cronjob", "made", "--image=i:1", "--schedule=* * * * *"),
    ("service", "clusterip", "made", "--tcp=80:web"),
    ("quota", "made", "--hard=cpu=1,pods=2"),
    ("role", "made", "--verb=get,list", "--resource=pods"),
    ("rolebinding", "made", "--role=made", "--serviceaccount=default:made"),
    ("poddisruptionbudget", "made", "--selector=a=b", "--min-available=50%"),
    ("priorityclass", "made", "--value=7", "--description=seven"),
]


def contains(whole: Any, part: Any) -> bool:
    """Return whether everything that `part` says is in `whole`; what is empty says nothing."""
    if isinstance(part, dict):
        return all(contains(whole.get(key), value) for key, value in part.items() if value not in (None, {}, [], ""))
    if isinstance(part, list):
        return len(whole) == len(part) and all(contains(w, p) for w, p in zip(whole, part, strict=True))
    return bool(whole == part)


@pytest.mark.parametrize("arguments", MADE, ids=lambda arguments: arguments[0])
def test_created_objects_are_what_kubectl_meant(kubectl: Kubectl, space: str, arguments: tuple[str, ...]) -> None:
    """kubectl 1.32 and later send these as protobuf: what is stored must be what the same kubectl prints as JSON."""
    if kubectl.minor < 25 and arguments[0] in ("cronjob", "poddisruptionbudget"):
        # Debian 12's own kubectl is 1.20
        pytest.skip("this kubectl makes a beta version that no API server of 1.25 or later serves")
    name = f"made-{space}"
    words = tuple(name if word == "made" else word for word in arguments)
    head, tail = (words[: words.index("--")], words[words.index("--") :]) if "--" in words else (words, ())
    meant = json.loads(kubectl("create", *head, "-n", space, "--dry-run=client", "-o", "json", *tail))
    meant.pop("status", None)
    if arguments[0] == "namespace":
        meant["metadata"].pop("namespace", None)  # old kubectl prints one even where it sends none
    kubectl("create", *head, "-n", space, *tail)
    stored = kubectl.json("get", arguments[0], name, "-n", space)
    assert contains(stored, meant), (stored, meant)
    if arguments[0] in ("namespace", "priorityclass"):
        kubectl("delete", arguments[0], name)


def test_shipped_kinds_work_with_their_short_names_and_columns(kubectl: Kubectl, space: str) -> None:
    kubectl("apply", "-f", str(ROOT / "deploy" / "crds"))
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    job = {
        "apiVersion": "mindxdl.gitee.com/v1",
        "kind": "AscendJob",
        "metadata": {"name": "train", "namespace": space},
        "spec": {
            "replicaSpecs": {
                "Master": {"replicas": 1, "template": {"spec": {"containers": [{"name": "ascend", "image": "x"}]}}}
            }
        },
    }
    kubectl("apply", "-f", "-", text=json.dumps(job))
    running = {
        "conditions": [{"type": "Created", "status": "True"}, {"type": "Running", "status": "True"}],
        "replicaStatuses": {},
    }
    kubectl.api.send(
        "PATCH", f"/apis/mindxdl.gitee.com/v1/namespaces/{space}/ascendjobs/train/status", {"status": running}, MERGE
    )
    assert re.search(r"NAME\s+STATE\s+AGE\ntrain\s+Running\s+\S+", kubectl("get", "acjob", "-n", space))
    bad = json.loads(json.dumps(job))
    bad["spec"]["replicaSpecs"]["Master"]["replicas"] = "one"
    said = kubectl.refused("apply", "-f", "-", text=json.dumps(bad))
    assert "spec.replicaSpecs.Master.replicas" in said
    assert "must be of type integer" in said
    pool = {
        "apiVersion": "belay.dev/v1alpha1",
        "kind": "NodePool",
        "metadata": {"name": space},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "product": "atlas-800t-a2", "shard": "main"},
    }
    kubectl("apply", "--server-side", "-f", "-", text=json.dumps(pool))
    assert re.search(rf"{space}\s+atlas-800t-a2\s.*\smain", kubectl("get", "np"))
    assert f"nodepool.belay.dev/{space}" in kubectl("get", "belay", "-o", "name")
    kubectl("delete", "np", space)
    kubectl("delete", "acjob", "train", "-n", space)


def test_questions_about_the_server(kubectl: Kubectl) -> None:
    assert "yes" in kubectl("auth", "can-i", "create", "pods")
    resources = kubectl("api-resources", "--no-headers")
    assert re.search(r"^deployments\s+deploy\s+apps/v1\s+true\s+Deployment", resources, re.MULTILINE)
    assert "v1.29.0" in kubectl("version")
    if kubectl.minor >= 29:
        assert "imagePullPolicy" in kubectl("explain", "pod.spec.containers")


def test_strict_validation_refuses_unknown_fields(kubectl: Kubectl, space: str) -> None:
    wrong = DEPLOYMENT.replace("replicas: 2", "replcas: 2")
    asked = ["apply", "-n", space]
    if kubectl.minor < 29:  # asks for it only after a look at /openapi/v2, which the sandbox does not serve
        wrong = json.dumps(yaml.safe_load(wrong))
        server = yaml.safe_load((kubectl.folder / "kubeconfig").read_text())["clusters"][0]["cluster"]["server"]
        path = f"{urlsplit(server).path}/apis/apps/v1/namespaces/{space}/deployments"
        asked = ["create", f"--raw={path}?fieldValidation=Strict"]
    assert 'unknown field "spec.replcas"' in kubectl.refused(*asked, "-f", "-", text=wrong)
    assert kubectl("get", "deployments", "-n", space, "-o", "name") == ""


def test_events_are_listed_and_described(kubectl: Kubectl, space: str) -> None:
    kubectl("create", "-n", space, "-f", "-", text=POD)
    target = {
        "kind": "Pod",
        "name": "p",
        "namespace": space,
        "uid": kubectl.json("get", "pod", "p", "-n", space)["metadata"]["uid"],
        "apiVersion": "v1",
    }
    event = {
        "metadata": {"name": "p.1"},
        "involvedObject": target,
        "reason": "Isolated",
        "message": "chip 3 is out",
        "type": "Warning",
        "source": {"component": "belay"},
        "count": 1,
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    assert kubectl.api.send("POST", f"/api/v1/namespaces/{space}/events", event)[0] == 201
    assert re.search(r"Warning\s+Isolated\s+pod/p\s+chip 3 is out", kubectl("get", "events", "-n", space))
    assert "chip 3 is out" in kubectl("describe", "pod", "p", "-n", space)


def test_large_lists_are_read_in_pages(kubectl: Kubectl, space: str) -> None:
    for i in range(12):
        kubectl.api.send("POST", f"/api/v1/namespaces/{space}/configmaps", {"metadata": {"name": f"c{i:02d}"}})
    listed = kubectl("get", "cm", "-n", space, "--chunk-size=5", "--no-headers").split("\n")
    assert [line.split()[0] for line in listed if line] == [f"c{i:02d}" for i in range(12)]


def test_bulk_deletion_by_label(kubectl: Kubectl, space: str) -> None:
    for i in range(4):
        labels = {"half": "a" if i % 2 else "b"}
        kubectl.api.send(
            "POST", f"/api/v1/namespaces/{space}/configmaps", {"metadata": {"name": f"c{i}", "labels": labels}}
        )
    kubectl("delete", "cm", "-l", "half=a", "-n", space)
    assert kubectl("get", "cm", "-o", "name", "-n", space).split() == ["configmap/c0", "configmap/c2"]
