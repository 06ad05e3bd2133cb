"""Inference services on a real control plane: taken over from the infer operator, changed, scaled.

Kubernetes' own controllers make the pods; the test is the kubelet of every node.
"""

from __future__ import annotations

import contextlib
import copy
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from belay.engine.kube import POD, Object, Resource, resource_for
from tests.control_planes import closed_ports
from tests.inference import API, left_by_operator, role, service_set
from tests.kube_server import define, real_cluster, stores_custom_objects
from tests.loop_world import Cluster, Loop, until
from tests.needs import assets, lacking
from tests.redis_server import redis_process, redis_url  # noqa: F401

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.xdist_group("inference-real")]

SET = resource_for(API, "InferServiceSet")
INSTANCES = resource_for(API, "InstanceSet")
STATEFUL = resource_for("apps/v1", "StatefulSet")
NS = "vision"
METRIC = {"type": "External", "external": {"metric": {"name": "waiting"},
                                           "target": {"type": "AverageValue", "averageValue": "5"}}}  # fmt: skip
SCALED = {"type": "HPA", "spec": {"minReplicas": 1, "maxReplicas": 4, "metrics": [METRIC]}}
CONTROLLERS = "statefulset,deployment,replicaset,garbagecollector,horizontalpodautoscaling"


class Services:
    """A control plane with four servers, and a set that the infer operator has left."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        for name in range(4):
            cluster.add_node(f"node-{name}")
            cluster.run(cluster.kube.patch(resource_for("v1", "Node"), f"node-{name}", {"spec": {"taints": None}}))
        cluster.create(
            resource_for("v1", "Namespace"), {"metadata": {"name": NS}, "kind": "Namespace", "apiVersion": "v1"}
        )

    def create(self, objects: list[Object]) -> None:
        """Create objects in order, with the uids that the API server gives."""
        uids: dict[str, str] = {}
        for raw in objects:
            if raw["kind"] == "Pod":
                continue  # the StatefulSet controller makes them
            raw = copy.deepcopy(raw)
            for ref in raw["metadata"].get("ownerReferences") or ():
                ref["uid"] = uids[ref["uid"]]
            raw.pop("status", None)
            raw["metadata"].pop("generation", None)
            old = raw["metadata"].pop("uid", "")
            made = self.cluster.create(resource_for(raw["apiVersion"], raw["kind"]), raw)
            uids[old] = made["metadata"]["uid"]

    def pods(self) -> list[Object]:
        """The pods of the set."""
        return self.cluster.run(self.cluster.kube.list(POD, NS)).items

    def kubelets(self) -> list[Object]:
        """Let every placed pod run and serve, and every deleted one end."""
        for pod in self.pods():
            meta, name = pod["metadata"], pod["metadata"]["name"]
            with contextlib.suppress(Exception):  # it has changed meanwhile: the next look sees it
                if meta.get("deletionTimestamp"):
                    self.cluster.run(self.cluster.kube.delete(POD, name, NS, grace=0, uid=meta["uid"]))
                elif pod["spec"].get("nodeName") and (pod.get("status") or {}).get("phase") == "Pending":
                    state = {"phase": "Running", "startTime": meta["creationTimestamp"],
                             "conditions": [{"type": "Ready", "status": "True"}]}  # fmt: skip
                    self.cluster.run(self.cluster.kube.patch_status(POD, name, {"status": state}, NS))
        return self.pods()

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait, with kubelets at work."""

        def look() -> object:
            self.kubelets()
            return condition()

        until(look, seconds=120, what=what)

    def workloads(self) -> dict[str, Object]:
        """The StatefulSets by name."""
        return {raw["metadata"]["name"]: raw for raw in self.cluster.run(self.cluster.kube.list(STATEFUL, NS)).items}

    def ready(self) -> int:
        """How many instances serve."""
        return sum((raw.get("status") or {}).get("readyReplicas", 0) == 1 for raw in self.workloads().values())

    def condition(self) -> tuple[str, str]:
        """Status and reason of the set's condition."""
        found = self.cluster.get(SET, "llm", NS) or {}
        rows = (found.get("status") or {}).get("conditions") or [{}]
        return rows[0].get("status", ""), rows[0].get("reason", "")

    def scaler(self) -> Resource:
        """Autoscalers in the newest version that the API server serves: autoscaling/v2 came with 1.23."""
        for version in ("v2", "v2beta2"):
            found = Resource(f"autoscaling/{version}", "HorizontalPodAutoscaler", "horizontalpodautoscalers", True)
            if self.cluster.run(self.cluster.kube.served(found)):
                return found
        raise AssertionError("the API server serves no autoscalers that take external metrics")


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    programs = assets("etcd", "kube-apiserver", "kube-controller-manager")
    with contextlib.ExitStack() as stack:
        trial = tmp_path / "trial"
        trial.mkdir()
        with real_cluster(programs, trial) as path:
            if not stores_custom_objects(path):
                lacking("this kube-apiserver ends when a custom resource is stored (its reflect2 is too old)")
        folder = tmp_path / "real"
        folder.mkdir()
        kubeconfig = stack.enter_context(real_cluster(programs, folder))
        define(kubeconfig)
        cluster = Cluster(folder, kubeconfig)
        stack.callback(cluster.close)
        with (folder / "controllers.log").open("wb") as log:
            child = subprocess.Popen(
                [str(programs / "kube-controller-manager"), "--kubeconfig", str(kubeconfig), "--leader-elect=false",
                 f"--controllers={CONTROLLERS}", "--service-account-private-key-file", str(folder / "sa.key"),
                 "--bind-address=127.0.0.1", *closed_ports(programs / "kube-controller-manager")],
                stdout=log, stderr=log,
            )  # fmt: skip
        stack.callback(child.wait, 20)
        stack.callback(child.terminate)
        yield Services(cluster)


def image_of(raw: Object) -> str:
    return str(raw["spec"]["template"]["spec"]["containers"][0]["image"])


def test_an_operators_services_are_taken_over_changed_and_scaled_on_a_real_control_plane(
    services: Services,
    redis_url: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    cluster = services.cluster

    def root(image: str) -> dict[str, Any]:
        return service_set(
            role("prefill", 2, pods=1, chips=8, image=image, scalingPolicy=SCALED),
            role("decode", 1, pods=1, chips=8, image=image),
        )

    operator = {"metadata": {"name": "infer-operator-1", "namespace": "mindx-dl"}, "kind": "Pod", "apiVersion": "v1",
                "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": "elsewhere"}}  # fmt: skip
    cluster.create(POD, operator)
    cluster.run(cluster.kube.patch_status(POD, "infer-operator-1", {"status": {"phase": "Running"}}, "mindx-dl"))
    services.create(left_by_operator(root("serve:1")))
    loop = Loop(cluster, redis_url, tmp_path / "data")
    try:
        services.until(lambda: services.ready() == 3, "the operator's instances")
        pods = {pod["metadata"]["uid"] for pod in services.pods()}
        generations = {name: raw["metadata"]["generation"] for name, raw in services.workloads().items()}
        cluster.run(cluster.kube.delete(POD, "infer-operator-1", "mindx-dl", grace=0))

        services.until(lambda: services.condition() == ("True", "AllInferServicesReady"), "the take-over")
        scaler = services.scaler()
        services.until(lambda: cluster.get(scaler, "llm-0-prefill-scaler", NS), "the autoscaler")
        adopted = "belay.dev/instance-template"
        services.until(
            lambda: all(adopted in (raw["metadata"].get("annotations") or {}) for raw in services.workloads().values()),
            "adopted workloads",
        )
        assert {pod["metadata"]["uid"] for pod in services.pods()} == pods, "no running pod has changed"
        assert {name: raw["metadata"]["generation"] for name, raw in services.workloads().items()} == generations

        target = cluster.get(scaler, "llm-0-prefill-scaler", NS)["spec"]["scaleTargetRef"]  # type: ignore[index]
        assert target == {"apiVersion": API, "kind": "InstanceSet", "name": "llm-0-prefill"}
        scale = cluster.run(
            cluster.kube.patch(INSTANCES, "llm-0-prefill", {"spec": {"replicas": 3}}, NS, subresource="scale")
        )
        assert scale["kind"] == "Scale"
        assert "infer.huawei.com/instanceset-name=prefill" in scale["status"]["selector"]
        services.until(lambda: services.ready() == 4, "the third prefill instance")

        missing: list[int] = []
        changed = root("serve:2")
        cluster.run(cluster.kube.patch(SET, "llm", {"spec": changed["spec"]}, NS))

        def all_new() -> bool:
            rows = services.workloads()
            missing.append(3 - sum((rows.get(f"llm-0-prefill-{n}", {}).get("status") or {}).get("readyReplicas", 0)
                                   for n in range(3)))  # fmt: skip
            return len(rows) == 4 and all(image_of(raw) == "serve:2" for raw in rows.values())

        services.until(all_new, "the changed template on every instance")
        services.until(lambda: services.condition() == ("True", "AllInferServicesReady"), "instances that serve")
        assert max(missing) == 1, "prefill lacked at most one instance at any look"
        assert {image_of(raw) for raw in services.workloads().values()} == {"serve:2"}
        quiet = {name: raw["metadata"]["resourceVersion"] for name, raw in services.workloads().items()}
        sent = len(loop.sent)
        until(lambda: len(loop.sent) >= sent + 3, seconds=120, what="three more passes")
        assert {n: raw["metadata"]["resourceVersion"] for n, raw in services.workloads().items()} == quiet
    finally:
        loop.close()
    assert loop.failures == []
