"""The closed list at the edge: every kind of action that no plan contains is refused, those of plans are not."""

from __future__ import annotations

from typing import Any

import pytest

from belay.engine.act import Refused
from belay.engine.act.permitted import check
from belay.engine.documents import KINDS
from belay.engine.documents.manifests import ACCEPTED
from belay.engine.model import actions as act
from belay.engine.model.actions import AnyAction, Owner
from tests.test_action_documents import ACTIONS

WHY: dict[str, Any] = {"reason": "Test", "message": "a test"}
BELAY = "belay.dev/v1alpha1"
VOLCANO = act.OwnerReference("batch.volcano.sh/v1alpha1", "Job", "j", "u")


def body(api: str, kind: str, namespace: str, name: str, **more: Any) -> dict[str, Any]:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **more}


def create(api: str, kind: str, namespace: str = "default", name: str = "x", **more: Any) -> act.CreateObject:
    made = body(api, kind, namespace, name, **more.pop("fields", {}))
    fields = {"object": made, **more}
    return act.CreateObject(**WHY, api_version=api, object_kind=kind, namespace=namespace, name=name, **fields)


def patch(api: str, kind: str, namespace: str, name: str, content: dict[str, Any]) -> act.PatchObject:
    return act.PatchObject(**WHY, api_version=api, object_kind=kind, namespace=namespace, name=name, patch=content)


def delete(api: str, kind: str, namespace: str, name: str) -> act.DeleteObject:
    return act.DeleteObject(**WHY, api_version=api, object_kind=kind, namespace=namespace, name=name)


def pod(namespace: str, **more: Any) -> act.CreatePod:
    made = body("v1", "Pod", namespace, "p", spec={})
    made["metadata"] |= {"ownerReferences": [{"uid": "u"}]} | more
    return act.CreatePod(**WHY, namespace=namespace, pod="p", owner=Owner("Job", "j"), object=made)


def table(namespace: str, name: str = "rings-config-j", into: str | None = None) -> act.WriteRankTable:
    return act.WriteRankTable(
        **WHY, namespace=namespace, name="j", table={}, config_map=name, config_map_namespace=into
    )


def keys(**changes: Any) -> act.CreateObject:
    given: dict[str, Any] = {
        "name": "j-ssh", "fields": {"type": "Opaque", "data": {"config": ""}},
        "generate": act.Generate("ssh-keys", VOLCANO),
    }  # fmt: skip
    return create("v1", "Secret", **(given | changes))


RBAC = "rbac.authorization.k8s.io/v1"
SCALER = "HorizontalPodAutoscaler"
OTHER = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"}
FORGED: dict[str, AnyAction] = {
    "a ClusterRoleBinding": create(RBAC, "ClusterRoleBinding", ""),
    "a ClusterRole": create(RBAC, "ClusterRole", ""),
    "a Role": create(RBAC, "Role"),
    "a RoleBinding patched": patch(RBAC, "RoleBinding", "default", "x", {"subjects": []}),
    "a ServiceAccount": create("v1", "ServiceAccount"),
    "a token": create("authentication.k8s.io/v1", "TokenRequest"),
    "a Secret": create("v1", "Secret"),
    "a Secret in the system": create("v1", "Secret", "kube-system", "j-ssh"),
    "a Secret patched": patch("v1", "Secret", "default", "x", {"data": {}}),
    "a Secret deleted": delete("v1", "Secret", "default", "x"),
    "a Secret with another name": keys(name="admin-token"),
    "a Secret with a token": keys(fields={"type": "kubernetes.io/service-account-token", "data": {}}),
    "a Secret with other content": keys(fields={"type": "Opaque", "data": {"token": "eA=="}}),
    "a Secret for a Deployment": keys(
        generate=act.Generate("ssh-keys", act.OwnerReference("apps/v1", "Deployment", "j", "u"))
    ),
    "a ConfigMap with keys": create("v1", "ConfigMap", generate=act.Generate("ssh-keys", VOLCANO)),
    "a Pod as an object": create("v1", "Pod"),
    "a Node": create("v1", "Node", ""),
    "a Node deleted": delete("v1", "Node", "", "node-1"),
    "a Node's taint": patch("v1", "Node", "", "node-1", {"spec": {"taints": []}}),
    "a Node's label": patch("v1", "Node", "", "node-1", {"metadata": {"labels": {"a": "b"}}}),
    "another's annotation of a Node": patch("v1", "Node", "", "node-1", {"metadata": {"annotations": {"a/b": "c"}}}),
    "a Pod's spec": patch("v1", "Pod", "default", "p", {"spec": {"containers": []}}),
    "a Pod's owner": patch("v1", "Pod", "default", "p", {"metadata": {"ownerReferences": []}}),
    "an eviction in the system": act.EvictPod(
        **WHY,
        namespace="kube-system",
        pod="coredns-1",
        grace_period_seconds=30,
        force=False,
        owner=None,
        budget_unit="p",
    ),
    "a DaemonSet": create("apps/v1", "DaemonSet"),
    "a webhook": create("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", ""),
    "a CustomResourceDefinition": delete("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "x"),
    "a Lease": patch("coordination.k8s.io/v1", "Lease", "belay-system", "belay-shard-main", {"spec": {}}),
    "Belay's budget": create("v1", "ConfigMap", "belay-system", "belay-budget"),
    "an order as an object": patch("v1", "ConfigMap", "belay-system", "belay-orders-node-1", {"data": {}}),
    "a device report": create("v1", "ConfigMap", "kube-system", "mindx-dl-deviceinfo-node-1"),
    "a report deleted": delete("v1", "ConfigMap", "belay-nodes", "belay-report-node-1"),
    "coredns": patch("v1", "ConfigMap", "kube-system", "coredns", {"data": {}}),
    "a Deployment in the system": create("apps/v1", "Deployment", "kube-system"),
    "a Deployment beside the engine": create("apps/v1", "Deployment", "belay-system"),
    "a system namespace": delete("v1", "Namespace", "", "kube-system"),
    "a Service in the system": patch("v1", "Service", "kube-system", "kube-dns", {"spec": {}}),
    "an object under another's name": create(
        "v1", "ConfigMap", object=body("v1", "ConfigMap", "kube-system", "coredns")
    ),
    "an object of another kind": create("v1", "ConfigMap", object=body(RBAC, "ClusterRoleBinding", "", "x")),
    "a patch of another kind": patch("v1", "ConfigMap", "default", "x", {"kind": "Secret"}),
    "a patch of another name": patch("v1", "ConfigMap", "default", "x", {"metadata": {"name": "y"}}),
    "a patch of another namespace": patch(
        "v1", "ConfigMap", "default", "x", {"metadata": {"namespace": "kube-system"}}
    ),
    "a field of no such kind": create("v1", "ConfigMap", fields={"roleRef": {}}),
    "metadata that is a text": create(
        "v1", "ConfigMap", object={"apiVersion": "v1", "kind": "ConfigMap", "metadata": ""}
    ),
    "a pod in the system": pod("kube-system"),
    "a pod beside the engine": pod("belay-system"),
    "a pod without an owner": pod("default", ownerReferences=[]),
    "a pod under another's name": pod("default", name="q"),
    "a rank table in the system": table("kube-system", "coredns"),
    "a rank table over a record": table("a", "job-summary-j"),
    "a rank table elsewhere": table("a", into="kube-system"),
    "an autoscaler of a Deployment": create("autoscaling/v2", SCALER, fields={"spec": {"scaleTargetRef": OTHER}}),
    "an autoscaler moved": patch("autoscaling/v2", SCALER, "default", "x", {"spec": {"scaleTargetRef": OTHER}}),
    "a scaled system": act.ScaleJob(**WHY, job_kind="Deployment", namespace="kube-system", name="coredns", replicas=0),
    "endless replicas": act.ScaleJob(**WHY, job_kind="Deployment", namespace="a", name="b", replicas=2**40),
    "a signal into the system": act.SignalJob(**WHY, namespace="belay-system", name="j", signal="fault", ranks=()),
}


@pytest.mark.parametrize("action", FORGED.values(), ids=FORGED)
def test_what_no_plan_contains_is_refused(action: AnyAction) -> None:
    with pytest.raises(Refused, match="not carried out: "):
        check(action)


def test_what_plans_contain_is_carried_out() -> None:
    for (api, kind), namespaced in ACCEPTED.items():
        namespace = "default" if namespaced else ""
        check(create(api, kind, namespace, fields={"spec": {}} if kind != "ConfigMap" else {"data": {}}))
        check(patch(api, kind, namespace, "x", {"metadata": {"labels": {}}, "status": {}}))
        check(delete(api, kind, namespace, "x"))
    target = {"apiVersion": "mindcluster.huawei.com/v1", "kind": "InstanceSet", "name": "x"}
    for api in ("autoscaling/v2", "autoscaling/v2beta2"):
        check(create(api, SCALER, fields={"spec": {"scaleTargetRef": target}}))
        check(patch(api, SCALER, "default", "x", {"metadata": {"annotations": {}}}))
        check(delete(api, SCALER, "default", "x"))
    for kind in KINDS:
        check(create(BELAY, kind, "", fields={"spec": {}}))
    check(keys())
    check(pod("default"))
    check(table("default"))
    check(table("default", into="belay-system"))
    check(create("v1", "ConfigMap", "belay-system", "belay-links-node-1"))
    check(delete("v1", "Pod", "default", "p"))
    check(patch("v1", "Pod", "default", "p", {"metadata": {"annotations": {"hccl/rankIndex": "0"}}}))
    check(patch("v1", "Node", "", "node-1", {"metadata": {"annotations": {"belay.dev/reboot-requested": None}}}))
    check(create("v1", "ConfigMap", "kube-system", "mindx-dl-fault-config"))


def test_every_kind_of_action_is_judged() -> None:
    for action in ACTIONS:
        try:
            check(action)
        except Refused as error:
            assert str(error).startswith("not carried out: ")
