"""The kinds that the server always serves.

Names, short names, categories and subresources as `kubectl api-resources` lists them.
"""

from __future__ import annotations

from engine.sandbox.api.kinds import Resource, ScalePaths

SCALE = ScalePaths(selector="spec.selector")
_SCALE_SUB = ("scale", "autoscaling", "v1", "Scale")
_AUTH = ("create",)

NAMESPACES = (
    "default",
    "kube-system",
    "kube-public",
    "kube-node-lease",
    "mindx-dl",
    "volcano-system",
    "cluster-system",
    "belay-system",
    "belay-nodes",
)
"""Namespaces that exist from the start: Kubernetes' own, MindCluster's, Volcano's and Belay's."""


def _core() -> list[Resource]:
    return [
        Resource(
            "",
            "v1",
            "namespaces",
            "Namespace",
            False,
            ("ns",),
            status=True,
            subresources=(("finalize", "", "v1", "Namespace"),),
        ),
        Resource(
            "",
            "v1",
            "pods",
            "Pod",
            True,
            ("po",),
            ("all",),
            status=True,
            subresources=(
                ("binding", "", "v1", "Binding"),
                ("eviction", "policy", "v1", "Eviction"),
                ("log", "", "v1", "Pod"),
            ),
        ),
        Resource("", "v1", "bindings", "Binding", verbs=_AUTH),
        Resource("", "v1", "nodes", "Node", False, ("no",), status=True),
        Resource("", "v1", "configmaps", "ConfigMap", True, ("cm",)),
        Resource("", "v1", "secrets", "Secret"),
        Resource("", "v1", "services", "Service", True, ("svc",), ("all",), status=True),
        Resource("", "v1", "events", "Event", True, ("ev",), storage="events", model="CoreV1Event"),
        Resource(
            "",
            "v1",
            "serviceaccounts",
            "ServiceAccount",
            True,
            ("sa",),
            subresources=(("token", "authentication.k8s.io", "v1", "TokenRequest"),),
        ),
        Resource("", "v1", "endpoints", "Endpoints", True, ("ep",), singular="endpoints"),
        Resource("", "v1", "persistentvolumes", "PersistentVolume", False, ("pv",), status=True),
        Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, ("pvc",), status=True),
        Resource("", "v1", "limitranges", "LimitRange", True, ("limits",)),
        Resource("", "v1", "resourcequotas", "ResourceQuota", True, ("quota",), status=True),
        Resource("", "v1", "podtemplates", "PodTemplate"),
        Resource(
            "",
            "v1",
            "replicationcontrollers",
            "ReplicationController",
            True,
            ("rc",),
            ("all",),
            True,
            SCALE,
            (_SCALE_SUB,),
            True,
        ),
    ]


def _workloads() -> list[Resource]:
    def scaled(plural: str, kind: str, short: str) -> Resource:
        return Resource("apps", "v1", plural, kind, True, (short,), ("all",), True, SCALE, (_SCALE_SUB,), True)

    return [
        scaled("deployments", "Deployment", "deploy"),
        scaled("statefulsets", "StatefulSet", "sts"),
        scaled("replicasets", "ReplicaSet", "rs"),
        Resource("apps", "v1", "daemonsets", "DaemonSet", True, ("ds",), ("all",), status=True, generation=True),
        Resource("apps", "v1", "controllerrevisions", "ControllerRevision"),
        Resource("batch", "v1", "jobs", "Job", True, (), ("all",), status=True, generation=True),
        Resource("batch", "v1", "cronjobs", "CronJob", True, ("cj",), ("all",), status=True, generation=True),
    ]


def _cluster() -> list[Resource]:
    rbac = "rbac.authorization.k8s.io"
    return [
        Resource("coordination.k8s.io", "v1", "leases", "Lease"),
        Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, ("pc",)),
        Resource(rbac, "v1", "roles", "Role"),
        Resource(rbac, "v1", "rolebindings", "RoleBinding"),
        Resource(rbac, "v1", "clusterroles", "ClusterRole", False),
        Resource(rbac, "v1", "clusterrolebindings", "ClusterRoleBinding", False),
        Resource(
            "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, ("pdb",), status=True, generation=True
        ),
        Resource(
            "events.k8s.io",
            "v1",
            "events",
            "Event",
            True,
            ("ev",),
            storage="events",
            storage_version=False,
            model="EventsV1Event",
        ),
        Resource(
            "apiextensions.k8s.io",
            "v1",
            "customresourcedefinitions",
            "CustomResourceDefinition",
            False,
            ("crd", "crds"),
            ("api-extensions",),
            status=True,
            generation=True,
        ),
        Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", False, ("sc",)),
        Resource("networking.k8s.io", "v1", "ingresses", "Ingress", True, ("ing",), status=True, generation=True),
        Resource(
            "networking.k8s.io",
            "v1",
            "networkpolicies",
            "NetworkPolicy",
            True,
            ("netpol",),
            generation=True,
            singular="networkpolicy",
        ),
        Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", generation=True),
        Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", False, singular="runtimeclass"),
        Resource(
            "autoscaling",
            "v2",
            "horizontalpodautoscalers",
            "HorizontalPodAutoscaler",
            True,
            ("hpa",),
            ("all",),
            status=True,
            model="V2HorizontalPodAutoscaler",
        ),
    ]


def _reviews() -> list[Resource]:
    authorization, authentication = "authorization.k8s.io", "authentication.k8s.io"
    return [
        Resource(authorization, "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False, verbs=_AUTH),
        Resource(authorization, "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", False, verbs=_AUTH),
        Resource(authorization, "v1", "subjectaccessreviews", "SubjectAccessReview", False, verbs=_AUTH),
        Resource(authorization, "v1", "localsubjectaccessreviews", "LocalSubjectAccessReview", verbs=_AUTH),
        Resource(authentication, "v1", "tokenreviews", "TokenReview", False, verbs=_AUTH),
        Resource(authentication, "v1", "selfsubjectreviews", "SelfSubjectReview", False, verbs=_AUTH),
    ]


def builtin_resources() -> list[Resource]:
    """Return fresh rows of every built-in kind."""
    return _core() + _workloads() + _cluster() + _reviews()


def model_of(resource: Resource) -> str:
    """Return the name of the kind's type in the Kubernetes Python client, the key of schemas.json."""
    return resource.model or f"V1{resource.kind}"
