"""The built-in kinds, which the server always serves.

Names, short names, categories and subresources as `kubectl api-resources` lists them.
"""

from __future__ import annotations

from belay.engine.sandbox.api.kinds import ScalePaths, ServedResource

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
"""Namespaces that exist at the start: those of Kubernetes, MindCluster, Volcano and Belay."""


def _core() -> list[ServedResource]:
    return [
        ServedResource(
            "",
            "v1",
            "namespaces",
            "Namespace",
            False,
            ("ns",),
            status=True,
            subresources=(("finalize", "", "v1", "Namespace"),),
        ),
        ServedResource(
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
        ServedResource("", "v1", "bindings", "Binding", verbs=_AUTH),
        ServedResource("", "v1", "nodes", "Node", False, ("no",), status=True),
        ServedResource("", "v1", "configmaps", "ConfigMap", True, ("cm",)),
        ServedResource("", "v1", "secrets", "Secret"),
        ServedResource("", "v1", "services", "Service", True, ("svc",), ("all",), status=True),
        ServedResource("", "v1", "events", "Event", True, ("ev",), storage="events", model="CoreV1Event"),
        ServedResource(
            "",
            "v1",
            "serviceaccounts",
            "ServiceAccount",
            True,
            ("sa",),
            subresources=(("token", "authentication.k8s.io", "v1", "TokenRequest"),),
        ),
        ServedResource("", "v1", "endpoints", "Endpoints", True, ("ep",), singular="endpoints"),
        ServedResource("", "v1", "persistentvolumes", "PersistentVolume", False, ("pv",), status=True),
        ServedResource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, ("pvc",), status=True),
        ServedResource("", "v1", "limitranges", "LimitRange", True, ("limits",)),
        ServedResource("", "v1", "resourcequotas", "ResourceQuota", True, ("quota",), status=True),
        ServedResource("", "v1", "podtemplates", "PodTemplate"),
        ServedResource(
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


def _workloads() -> list[ServedResource]:
    def scaled(plural: str, kind: str, short: str) -> ServedResource:
        return ServedResource("apps", "v1", plural, kind, True, (short,), ("all",), True, SCALE, (_SCALE_SUB,), True)

    return [
        scaled("deployments", "Deployment", "deploy"),
        scaled("statefulsets", "StatefulSet", "sts"),
        scaled("replicasets", "ReplicaSet", "rs"),
        ServedResource("apps", "v1", "daemonsets", "DaemonSet", True, ("ds",), ("all",), status=True, generation=True),
        ServedResource("apps", "v1", "controllerrevisions", "ControllerRevision"),
        ServedResource("batch", "v1", "jobs", "Job", True, (), ("all",), status=True, generation=True),
        ServedResource("batch", "v1", "cronjobs", "CronJob", True, ("cj",), ("all",), status=True, generation=True),
    ]


def _cluster() -> list[ServedResource]:
    rbac = "rbac.authorization.k8s.io"
    return [
        ServedResource("coordination.k8s.io", "v1", "leases", "Lease"),
        ServedResource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, ("pc",)),
        ServedResource(rbac, "v1", "roles", "Role"),
        ServedResource(rbac, "v1", "rolebindings", "RoleBinding"),
        ServedResource(rbac, "v1", "clusterroles", "ClusterRole", False),
        ServedResource(rbac, "v1", "clusterrolebindings", "ClusterRoleBinding", False),
        ServedResource(
            "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, ("pdb",), status=True, generation=True
        ),
        ServedResource(
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
        ServedResource(
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
        ServedResource("storage.k8s.io", "v1", "storageclasses", "StorageClass", False, ("sc",)),
        ServedResource(
            "resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", status=True, model="ResourceV1ResourceClaim"
        ),
        ServedResource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate"),
        ServedResource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", False, generation=True),
        ServedResource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", False, generation=True),
        ServedResource("networking.k8s.io", "v1", "ingresses", "Ingress", True, ("ing",), status=True, generation=True),
        ServedResource(
            "networking.k8s.io",
            "v1",
            "networkpolicies",
            "NetworkPolicy",
            True,
            ("netpol",),
            generation=True,
            singular="networkpolicy",
        ),
        ServedResource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", generation=True),
        ServedResource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", False, singular="runtimeclass"),
        ServedResource(
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


def _reviews() -> list[ServedResource]:
    authorization, authentication = "authorization.k8s.io", "authentication.k8s.io"
    return [
        ServedResource(authorization, "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False, verbs=_AUTH),
        ServedResource(authorization, "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", False, verbs=_AUTH),
        ServedResource(authorization, "v1", "subjectaccessreviews", "SubjectAccessReview", False, verbs=_AUTH),
        ServedResource(authorization, "v1", "localsubjectaccessreviews", "LocalSubjectAccessReview", verbs=_AUTH),
        ServedResource(authentication, "v1", "tokenreviews", "TokenReview", False, verbs=_AUTH),
        ServedResource(authentication, "v1", "selfsubjectreviews", "SelfSubjectReview", False, verbs=_AUTH),
    ]


def builtin_resources() -> list[ServedResource]:
    """Return fresh rows of every built-in kind."""
    return _core() + _workloads() + _cluster() + _reviews()


def model_of(resource: ServedResource) -> str:
    """Return the name of the kind's type in the Kubernetes Python client, the key of schemas.json."""
    return resource.model or f"V1{resource.kind}"
