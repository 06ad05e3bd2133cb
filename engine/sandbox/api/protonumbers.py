"""Field numbers of Kubernetes' protobuf messages, for the types that clients send in protobuf.

kubectl 1.32 and later send protobuf from `create`, `drain`, `scale`, `auth can-i` and the like. Source: generated.proto
files of k8s.io/api and k8s.io/apimachinery (Apache-2.0). One line per message: the names of fields 1, 2, 3, ...; `-`
for numbers not used.
"""

from __future__ import annotations

from functools import cache

_OBJECT = "metadata spec status"
_NUMBERS: dict[str, str] = {
    "V1ObjectMeta": "name generateName namespace selfLink uid resourceVersion generation creationTimestamp "
    "deletionTimestamp "
    "deletionGracePeriodSeconds labels annotations ownerReferences finalizers - - managedFields",
    "V1OwnerReference": "kind - name uid apiVersion controller blockOwnerDeletion",
    "V1LabelSelector": "matchLabels matchExpressions",
    "V1LabelSelectorRequirement": "key operator values",
    "V1ObjectReference": "kind namespace name uid apiVersion resourceVersion fieldPath",
    "V1LocalObjectReference": "name",
    "V1DeleteOptions": "gracePeriodSeconds preconditions orphanDependents propagationPolicy dryRun",
    "V1Preconditions": "uid resourceVersion",
    "V1Namespace": _OBJECT,
    "V1NamespaceSpec": "finalizers",
    "V1ConfigMap": "metadata data binaryData immutable",
    "V1Secret": "metadata data type stringData immutable",
    "V1ServiceAccount": "metadata secrets imagePullSecrets automountServiceAccountToken",
    "V1Service": _OBJECT,
    "V1ServiceSpec": "ports selector clusterIP type externalIPs - sessionAffinity loadBalancerIP "
    "loadBalancerSourceRanges externalName "
    "externalTrafficPolicy healthCheckNodePort publishNotReadyAddresses sessionAffinityConfig - - ipFamilyPolicy "
    "clusterIPs ipFamilies "
    "allocateLoadBalancerNodePorts loadBalancerClass internalTrafficPolicy",
    "V1ServicePort": "name protocol port targetPort nodePort appProtocol",
    "V1Binding": "metadata target",
    "V1Eviction": "metadata deleteOptions",
    "V1Scale": _OBJECT,
    "V1ScaleSpec": "replicas",
    "V1ResourceQuota": _OBJECT,
    "V1ResourceQuotaSpec": "hard scopes scopeSelector",
    "V1PodDisruptionBudget": _OBJECT,
    "V1PodDisruptionBudgetSpec": "minAvailable selector maxUnavailable unhealthyPodEvictionPolicy",
    "V1PriorityClass": "metadata value globalDefault description preemptionPolicy",
    "V1Deployment": _OBJECT,
    "V1DeploymentSpec": "replicas selector template strategy minReadySeconds revisionHistoryLimit paused - "
    "progressDeadlineSeconds",
    "V1DeploymentStrategy": "type rollingUpdate",
    "V1RollingUpdateDeployment": "maxUnavailable maxSurge",
    "V1Job": _OBJECT,
    "V1JobSpec": "parallelism completions activeDeadlineSeconds selector manualSelector template backoffLimit "
    "ttlSecondsAfterFinished "
    "completionMode suspend podFailurePolicy backoffLimitPerIndex maxFailedIndexes podReplacementPolicy "
    "managedBy successPolicy",
    "V1CronJob": _OBJECT,
    "V1CronJobSpec": "schedule startingDeadlineSeconds concurrencyPolicy suspend jobTemplate "
    "successfulJobsHistoryLimit "
    "failedJobsHistoryLimit timeZone",
    "V1JobTemplateSpec": "metadata spec",
    "V1Pod": _OBJECT,
    "V1PodTemplateSpec": "metadata spec",
    "V1PodSpec": "volumes containers restartPolicy terminationGracePeriodSeconds activeDeadlineSeconds dnsPolicy "
    "nodeSelector "
    "serviceAccountName serviceAccount nodeName hostNetwork hostPID hostIPC securityContext imagePullSecrets "
    "hostname subdomain affinity "
    "schedulerName initContainers automountServiceAccountToken tolerations hostAliases priorityClassName "
    "priority dnsConfig "
    "shareProcessNamespace readinessGates runtimeClassName enableServiceLinks preemptionPolicy overhead "
    "topologySpreadConstraints "
    "ephemeralContainers setHostnameAsFQDN os hostUsers schedulingGates resourceClaims resources",
    "V1Toleration": "key operator value effect tolerationSeconds",
    "V1Container": "name image command args workingDir ports env resources volumeMounts livenessProbe "
    "readinessProbe lifecycle "
    "terminationMessagePath imagePullPolicy securityContext stdin stdinOnce tty envFrom terminationMessagePolicy "
    "volumeDevices "
    "startupProbe resizePolicy restartPolicy",
    "V1ContainerPort": "name hostPort containerPort protocol hostIP",
    "V1EnvVar": "name value valueFrom",
    "V1ResourceRequirements": "limits requests claims",
    "V1Role": "metadata rules",
    "V1ClusterRole": "metadata rules aggregationRule",
    "V1AggregationRule": "clusterRoleSelectors",
    "V1PolicyRule": "verbs apiGroups resources resourceNames nonResourceURLs",
    "V1RoleBinding": "metadata subjects roleRef",
    "V1ClusterRoleBinding": "metadata subjects roleRef",
    "RbacV1Subject": "kind apiGroup name namespace",
    "V1RoleRef": "apiGroup kind name",
    "V1SelfSubjectAccessReview": _OBJECT,
    "V1SelfSubjectAccessReviewSpec": "resourceAttributes nonResourceAttributes",
    "V1ResourceAttributes": "namespace verb group version resource subresource name fieldSelector labelSelector",
    "V1NonResourceAttributes": "path verb",
    "V1SelfSubjectRulesReview": _OBJECT,
    "V1SelfSubjectRulesReviewSpec": "namespace",
    "V1SelfSubjectReview": "metadata status",
    "AuthenticationV1TokenRequest": _OBJECT,
    "V1TokenRequestSpec": "audiences - boundObjectRef expirationSeconds",
    "V1BoundObjectReference": "kind apiVersion name uid",
}


@cache
def field_names(message: str) -> dict[int, str]:
    """Return {number: field} of a message; empty for an unknown one."""
    names = _NUMBERS.get(message, "").split()
    return {number: name for number, name in enumerate(names, 1) if name != "-"}
