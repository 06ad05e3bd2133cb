"""Names of labels, annotations and resources, each once: code that reads or writes one imports it from here.

The names are contracts with users, MindCluster, Volcano and Kubernetes. A section says on which objects its names
stand, and where they are documented. Names of ConfigMaps and their namespaces are in ``belay.engine.wire.names``.
"""

from __future__ import annotations

from typing import Final

# Resources of nodes and containers.
# Source: MindCluster, docs/zh/scheduling/06_api/12_k8s.md; component/ascend-device-plugin/pkg/common/constants.go.

#: Resources of a container whose names begin so are chips.
HUAWEI_PREFIX: Final = "huawei.com/"
ASCEND_910: Final = "huawei.com/Ascend910"
ASCEND_310: Final = "huawei.com/Ascend310"
ASCEND_310P: Final = "huawei.com/Ascend310P"
#: Chips of every generation from Ascend 950 on.
NPU: Final = "huawei.com/npu"
#: AI cores of a chip that is partitioned on demand.
NPU_CORE: Final = "huawei.com/npu-core"

# What users write on their jobs and pods: labels, then annotations.
# Source: MindCluster, docs/zh/scheduling/06_api/12_k8s.md; component/ascend-for-volcano/common/util/type.go.

#: Whether and how the pods of a faulty job are deleted: grace, force, off.
FAULT_SCHEDULING: Final = "fault-scheduling"
#: How many failures of its own a job may have that are answered by new pods.
FAULT_RETRY_TIMES: Final = "fault-retry-times"
POD_RESCHEDULING: Final = "pod-rescheduling"
PROCESS_RECOVER_ENABLE: Final = "process-recover-enable"
SUB_HEALTHY_STRATEGY: Final = "subHealthyStrategy"
ELASTIC_SCHEDULING: Final = "elastic-scheduling"
TOR_AFFINITY: Final = "tor-affinity"
SUPER_POD_AFFINITY: Final = "super-pod-affinity"
#: Whether a 310 job wants chips of one card.
NPU_310_STRATEGY: Final = "npu-310-strategy"
VNPU_LEVEL: Final = "vnpu-level"
VNPU_DVPP: Final = "vnpu-dvpp"
#: Whether a job on Atlas 300I Duo may spread over servers.
DISTRIBUTED_LABEL: Final = "distributed"
FRAMEWORK_LABEL: Final = "framework"
#: Which chips a job is for: ascend-910, ascend-310P, ascend-310.
RING_CONTROLLER: Final = "ring-controller.atlas"
PODGROUP_SCHED_ENABLE: Final = "podgroup-sched-enable"
SCALEOUT_TYPE: Final = "scaleout-type"
SCALING_RULE: Final = "mind-cluster/scaling-rule"
SCALING_GROUP: Final = "mind-cluster/group-name"
#: The inference service that a job of MindIE belongs to.
SERVICE_JOB_ID: Final = "jobID"
APP_LABEL: Final = "app"
DEPLOY_NAME: Final = "deploy-name"
CUSTOM_JOB_KEY: Final = "customJobKey"
CUSTOM_JOB_ID: Final = "custom-job-id"
#: Levels and codes of faults that a job endures.
FILTER_FAULT_LEVEL: Final = "huawei.com/schedule.filter.faultLevel"
FILTER_FAULT_CODE: Final = "huawei.com/schedule.filter.faultCode"
SHARE_CORES: Final = "huawei.com/scheduler.softShareDev.aicoreQuota"
SHARE_MEMORY: Final = "huawei.com/scheduler.softShareDev.hbmQuota"
SHARE_POLICY: Final = "huawei.com/scheduler.softShareDev.policy"
#: Written at placement: which share of the chip is the pod's.
SHARE_ID: Final = "huawei.com/scheduler.softShareDev.vnpuId"

#: Which of the recoveries of processes a job allows.
RECOVER_STRATEGY: Final = "recover-strategy"
#: Seconds that an elastic job waits for a free server.
WAIT_RESCHEDULE_TIMEOUT: Final = "wait-reschedule-timeout"
#: Fewest replicas that an elastic job runs with.
MIN_REPLICAS: Final = "minReplicas"
#: Chips of a job that stay in one super pod, in one rack.
SP_BLOCK: Final = "sp-block"
RA_BLOCK: Final = "ra-block"
SP_FIT: Final = "sp-fit"
SCHEDULE_POLICY: Final = "huawei.com/schedule_policy"
AFFINITY_CONFIG: Final = "huawei.com/affinity-config"
SCHEDULE_MIN_AVAILABLE: Final = "huawei.com/schedule_minAvailable"
SCHEDULE_UB_MEMORY: Final = "huawei.com/schedule_ubmemory"
ENABLE_DEQUEUE: Final = "huawei.com/schedule_enable_dequeue"
ENQUEUE_TIME: Final = "huawei.com/schedule_enqueue_time"
DEQUEUE_FREQUENCY: Final = "huawei.com/schedule_dequeue_frequency"
#: How far the restart of a job may widen: pod, job.
RECOVER_POLICY_PATH: Final = "huawei.com/recover_policy_path"

# What operators, recovery and ClusterD write on pods and PodGroups.
# Source: component/ascend-operator/pkg/api/v1; component/clusterd/pkg/common/constant/constant.go.

REPLICA_TYPE: Final = "replica-type"
REPLICA_INDEX: Final = "replica-index"
JOB_NAME_LABEL: Final = "job-name"
KUBEFLOW_OPERATOR_NAME: Final = "training.kubeflow.org/operator-name"
KUBEFLOW_JOB_NAME: Final = "training.kubeflow.org/job-name"
KUBEFLOW_REPLICA_TYPE: Final = "training.kubeflow.org/replica-type"
KUBEFLOW_REPLICA_INDEX: Final = "training.kubeflow.org/replica-index"
KUBEFLOW_JOB_ROLE: Final = "training.kubeflow.org/job-role"
#: How a pod's processes failed: a fault in software or hardware, or one that is tried again.
FAULT_TYPE: Final = "fault-type"
PROCESS_RECOVER_STATUS: Final = "ProcessRecoverStatus"
PROCESS_RECOVER_STRATEGY: Final = "ProcessRecoverStrategy"
PROCESS_CONFIRM_FAULT: Final = "ProcessConfirmFault"
PROCESS_RESULT_FAULT: Final = "ProcessResultFault"
RANK_TABLE_READY: Final = "RankTableReady"
#: A pod that a backup replaces while it runs, and the backup: each names the other.
POD_TYPE: Final = "podType"
BACKUP_SOURCE_POD: Final = "backupSourcePodName"
BACKUP_NEW_POD: Final = "backupNewPodName"
IN_HOT_SWITCH_FLOW: Final = "inHotSwitchFlow"
NEED_OPERATOR: Final = "needOperatorOpe"
NEED_VOLCANO: Final = "needVolcanoOpe"
RESCHEDULE_IN_PLACE: Final = "reschedule-in-place"

# What the scheduler writes on pods at their placement, and the device plugin when it served them.
# Source: component/ascend-for-volcano/internal/npu/base/task.go; component/ascend-device-plugin/pkg/server/manager.go.

ASCEND_REAL: Final = "huawei.com/AscendReal"
KUBELET_DEVICES: Final = "huawei.com/kltDev"
PREDICATE_TIME: Final = "predicate-time"
DISTRIBUTED_JOB: Final = "distributed-job"
RANK_INDEX: Final = "hccl/rankIndex"
HARDWARE_TYPE: Final = "mind-cluster/hardware-type"
SUPER_POD_ID: Final = "super-pod-id"
SUPER_POD_RANK: Final = "super-pod-rank"
IS_SHARED_TOR: Final = "isSharedTor"
IS_HEALTHY_TOR: Final = "isHealthy"
SHARED_TOR_IP: Final = "sharedTorIp"
CONFIGURATION_910: Final = "ascend.kubectl.kubernetes.io/ascend-910-configuration"
CONFIGURATION_NPU: Final = "ascend.kubectl.kubernetes.io/ascend-npu-configuration"

# What device plugins and operators write on nodes: labels, then annotations.
# Source: component/ascend-device-plugin/pkg/common/constants.go; docs/zh/scheduling/06_api/12_k8s.md.

ACCELERATOR_LABEL: Final = "accelerator"
ACCELERATOR_TYPE: Final = "accelerator-type"
SERVER_TYPE: Final = "servertype"
SERVER_USAGE: Final = "server-usage"
HOST_ARCH: Final = "host-arch"
INFER_CARD_TYPE: Final = "infer-card-type"
#: Memory of one chip, which shares are measured by.
CHIP_MEMORY: Final = "mind-cluster/npu-chip-memory"
CHIP_NAME: Final = "node.kubernetes.io/npu.chip.name"
DRIVER_VERSION: Final = "huawei.com/driver.version"
#: Of nodes whose chips are shared softly; each chip is then offered as a hundred devices.
SOFT_SHARING_ENABLED: Final = "huawei.com/scheduler.chip1softsharedev.enable"
TOPOLOGY_TREE: Final = "huawei.com/topotree"
TREE_SUPER_POD: Final = "huawei.com/topotree.superpodid"
TREE_SERVER: Final = "huawei.com/topotree.serverid"
TREE_RACK: Final = "huawei.com/topotree.rackid"

#: The node's chips with their addresses and super-pod ids.
BASE_DEVICES: Final = "baseDeviceInfos"
RESET_INFO: Final = "ResetInfo"
NODE_SUPER_POD: Final = "superPodID"
NODE_SERVER_INDEX: Final = "serverIndex"
NODE_RACK: Final = "rackID"
NODE_SERVER_TYPE: Final = "serverType"
NODE_CARD_TYPE: Final = "cardType"
#: By which public faults and messages may name a node.
PRODUCT_SERIAL: Final = "product-serial-number"
#: UnHealthy while a stress test of recovery has condemned the node.
NODE_HEALTHY_STATUS: Final = "NodeHealthyStatus"

# Labels by which readers find ConfigMaps.
# Source: component/clusterd/pkg/common/constant/constant.go.

#: MindCluster's readers find node reports by it.
CIM_CONSUMER: Final = "mx-consumer-cim"
#: Volcano's plugin finds aggregated reports by it.
VOLCANO_CONSUMER: Final = "mx-consumer-volcano"
PUBLIC_FAULT_CONSUMER: Final = "mc-consumer-publicfault"
FAULT_STATISTIC: Final = "mc-statistic-fault"
OUTSIDE_JOB_INFO: Final = "outside-job-info"
CLUSTERD_CONSUMER: Final = "huawei.com/consumer.clusterd"

# Inference services: sets, services, roles and their instances.
# Source: component/infer-operator/pkg/common/constant.go.

INFERENCE_MANAGED: Final = "infer.huawei.com/ascend-infer-operator"
INFERENCE_SET: Final = "infer.huawei.com/inferserviceset-name"
INFERENCE_SERVICE: Final = "infer.huawei.com/inferservice-name"
INFERENCE_SERVICE_INDEX: Final = "infer.huawei.com/inferservice-index"
#: The role's name, not the name of the InstanceSet.
INFERENCE_ROLE: Final = "infer.huawei.com/instanceset-name"
INFERENCE_INSTANCE_INDEX: Final = "infer.huawei.com/instanceset-index"
#: The role in the selectors of external metrics.
INFERENCE_METRIC_ROLE: Final = "infer.huawei.com/role-name"
INFERENCE_STRATEGY: Final = "infer.huawei.com/priority-scheduling-strategy"
INFERENCE_GANG: Final = "infer.huawei.com/gang-schedule"
#: Of autoscalers that belong to an InstanceSet.
INFERENCE_SCALES: Final = "infer.huawei.com/scaling-owned-by"
CONTAINER_SNAPSHOT: Final = "infer.huawei.com/container-snapshot"
SNAPSHOT_ACTIVE: Final = "infer.huawei.com/active"
SNAPSHOT_MODE: Final = "snapshot_mode"
SNAPSHOT_FINISHED: Final = "host_snapshot_finish_flag"
#: Without the prefix: the scheduler's affinity of services reads it.
INFERENCE_SERVICE_ID: Final = "inferserviceid"
POD_STATUS_LABEL: Final = "huawei.com/pod-status"

# Volcano's queues, jobs and PodGroups.
# Source: volcano.sh/apis/pkg/apis/batch/v1alpha1/labels.go and scheduling/v1beta1/labels.go.

#: Of the annotations and labels that a PodGroup takes over from its pods and their controller.
VOLCANO_PREFIX: Final = "volcano.sh/"
#: On pods: the PodGroup that they belong to. Volcano reads both.
GROUP_NAME: Final = "scheduling.k8s.io/group-name"
VOLCANO_GROUP_NAME: Final = "scheduling.volcano.sh/group-name"
GROUP_MIN_MEMBER: Final = "scheduling.volcano.sh/group-min-member"
GROUP_QUEUE_NAME: Final = "scheduling.volcano.sh/queue-name"
VOLCANO_QUEUE_NAME: Final = "volcano.sh/queue-name"
VOLCANO_JOB_NAME: Final = "volcano.sh/job-name"
VOLCANO_JOB_NAMESPACE: Final = "volcano.sh/job-namespace"
VOLCANO_JOB_VERSION: Final = "volcano.sh/job-version"
VOLCANO_JOB_RETRY_COUNT: Final = "volcano.sh/job-retry-count"
VOLCANO_TASK_SPEC: Final = "volcano.sh/task-spec"
VOLCANO_TASK_INDEX: Final = "volcano.sh/task-index"
VOLCANO_TEMPLATE_UID: Final = "volcano.sh/template-uid"
VOLCANO_PREEMPTABLE: Final = "volcano.sh/preemptable"
VOLCANO_RECLAIMABLE: Final = "volcano.sh/reclaimable"
VOLCANO_COOLDOWN_TIME: Final = "volcano.sh/cooldown-time"
VOLCANO_REVOCABLE_ZONE: Final = "volcano.sh/revocable-zone"
VOLCANO_SCHEDULE_PLUGIN: Final = "volcano.sh/schedule.plugin"

# Kubernetes, its controllers and tools beside it.
# Source: kubernetes.io, "Well-Known Labels, Annotations and Taints"; the controllers' own sources.

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
PART_OF: Final = "app.kubernetes.io/part-of"
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
RESTARTED_AT: Final = "kubectl.kubernetes.io/restartedAt"
DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
POD_TEMPLATE_HASH: Final = "pod-template-hash"
DEPLOYMENT_REVISION: Final = "deployment.kubernetes.io/revision"
DEPLOYMENT_DESIRED: Final = "deployment.kubernetes.io/desired-replicas"
DEPLOYMENT_MAXIMUM: Final = "deployment.kubernetes.io/max-replicas"
CONTROLLER_REVISION_HASH: Final = "controller-revision-hash"
STATEFUL_SET_POD_NAME: Final = "statefulset.kubernetes.io/pod-name"
STATEFUL_SET_POD_INDEX: Final = "apps.kubernetes.io/pod-index"
JOB_COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
BATCH_JOB_NAME: Final = "batch.kubernetes.io/job-name"
BATCH_CONTROLLER_UID: Final = "batch.kubernetes.io/controller-uid"
POD_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
LEADER_WORKER_SET_REVISION: Final = "leaderworkerset.sigs.k8s.io/template-revision-hash"
OME_SERVICE: Final = "ome.io/inferenceservice"
#: Labels and gates of Kueue begin so; so does the name of a gang's queue that is one of Kueue's.
KUEUE_PREFIX: Final = "kueue.x-k8s.io/"
SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
#: Keys of taints by the node lifecycle controller.
NODE_NOT_READY: Final = "node.kubernetes.io/not-ready"
NODE_UNREACHABLE: Final = "node.kubernetes.io/unreachable"
HOSTNAME_LABEL: Final = "kubernetes.io/hostname"
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
#: Where a node or volume is, by the older names and their newer ones (k8s.io/api/core/v1, well_known_labels.go).
NEWER_ZONE_LABELS: Final = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
ZONE_LABELS: Final = (*NEWER_ZONE_LABELS, *NEWER_ZONE_LABELS.values())
BOUND_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"
BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
BETA_STORAGE_CLASS: Final = "volume.beta.kubernetes.io/storage-class"
#: Provisioner of classes whose volumes people make.
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"
#: Of namespaces in which claims may ask for admin access (kubernetes.io/docs, DRA, "Admin access").
ADMIN_ACCESS: Final = "resource.kubernetes.io/admin-access"
#: Of a claim: which of its pod's claims it is.
POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
#: Of claims that a scheduler has made for extended resources (k8s.io/api/resource/v1).
EXTENDED_CLAIM: Final = "resource.kubernetes.io/extended-resource-claim"
#: The finalizer that keeps an allocated claim while pods use it.
DELETE_PROTECTION: Final = "resource.kubernetes.io/delete-protection"
#: Start of the resource that stands for a DeviceClass of this name.
DEVICE_CLASS_PREFIX: Final = "deviceclass.resource.kubernetes.io/"

# Belay's own, on what people write: jobs, services, objects in Git.
# Source: docs/reference.

BELAY_PREFIX: Final = "belay.dev/"
SHARD_LABEL: Final = "belay.dev/shard"
#: Label or annotation of a job: whose it is, for the history and its usage.
USER_KEY: Final = "belay.dev/user"
#: Of a document: ``disabled`` keeps its object, ``confirmed`` allows its deletion without confirmation.
PRUNE_ANNOTATION: Final = "belay.dev/prune"
#: When a job reported its last checkpoint, and what its steps, its start and its recoveries cost.
CHECKPOINT_TIME: Final = "belay.dev/checkpoint-time"
LOAD_SECONDS: Final = "belay.dev/load-seconds"
START_SECONDS: Final = "belay.dev/start-seconds"
STEP_SECONDS: Final = "belay.dev/step-seconds"
SCALE_SECONDS: Final = "belay.dev/scale-seconds"
TRAINING_TIME: Final = "belay.dev/training-time"
#: Of a PodGroup: the level chosen for its open recovery.
RECOVERY_LEVEL: Final = "belay.dev/recovery-level"
#: Minutes for which room must last before an elastic job grows.
GROW_AFTER: Final = "belay.dev/grow-after"
#: How a changed template reaches the instances of a role, service or set.
MAX_UNAVAILABLE: Final = "belay.dev/max-unavailable"
MAX_SURGE: Final = "belay.dev/max-surge"
ROLLOUT_ANNOTATION: Final = "belay.dev/rollout"
#: Of roles whose rules are added to those of the engine, the server and those who read the status.
READS_WORKLOADS: Final = "belay.dev/reads-workloads"

# Belay's own, on what it writes.

#: Digest of what was applied from Git.
APPLIED_DIGEST: Final = "belay.dev/applied-digest"
#: Of ConfigMaps for operators: ``sync``, ``pass``, ``pool``, ``job``, ``map``, ``chips``, ``queues``, ``link`` or
#: ``notify``.
ABOUT_LABEL: Final = "belay.dev/about"
FORMAT_ANNOTATION: Final = "belay.dev/format"
#: Of a republished aggregate: the time in Unix seconds.
PUBLISHED_ANNOTATION: Final = "belay.dev/published"
#: Of an orders ConfigMap: the node's pool, and so the policy that applies.
POOL_LABEL: Final = "belay.dev/pool"
POLICY_DIGEST: Final = "belay.dev/policy-digest"
POLICY_TEST_LABEL: Final = "belay.dev/policy-test"
#: Of the orders: Unix ms of each chip's last reset orders, written together with the epoch.
RESET_ATTEMPTS: Final = "belay.dev/reset-attempts"
#: Of a Node kept from new work: the level of its fault.
ISOLATED_ANNOTATION: Final = "belay.dev/isolated"
#: Of a Node whose chips no reset healed: since when, and their levels.
REBOOT_REQUESTED: Final = "belay.dev/reboot-requested"
#: Of a Node that Belay cordoned: the level of its isolation. No other cordon is ever taken back.
CORDONED_ANNOTATION: Final = "belay.dev/cordoned"
#: Of a Volcano Job: name of the Secret with the key pair of its plugin ``ssh``, once it exists.
SSH_KEYS: Final = "belay.dev/ssh-keys"
#: Of an Event: the cause of what was done, as JSON, for programs; its text is in the message.
EVENT_CAUSE: Final = "belay.dev/cause"
#: Of an Event: the node, and the chips on it separated by commas, that were acted on.
EVENT_NODE: Final = "belay.dev/node"
EVENT_CHIPS: Final = "belay.dev/chips"
#: Of an Event: the trace of OpenTelemetry that what was done belongs to.
EVENT_TRACE: Final = "belay.dev/trace-id"
#: On a workload or Service of a role: digest of what it was made from.
INSTANCE_TEMPLATE: Final = "belay.dev/instance-template"
#: On a workload beyond the declared number, which stands in while others are replaced.
SURGE_INSTANCE: Final = "belay.dev/surge-instance"
#: Digest of the template whose snapshot is in the folder that the infer operator names.
SNAPSHOT_TEMPLATE: Final = "belay.dev/snapshot-template"
#: Of a pod: the number of its cluster, in place of the one derived from the pod's name.
KV_CLUSTER: Final = "belay.dev/kv-cluster"
#: Of a PodGroup (or the pod of rank 0): the stage of its job, ``inited`` or ``registered``.
PROCESS_RECOVERY: Final = "belay.dev/process-recovery"
#: Of the same: the newest summaries of its job, oldest first, as JSON.
PROCESS_RECOVERIES: Final = "belay.dev/process-recoveries"
#: Of the same: the ranks that are retried, each with the time of its report (ms), and when the newest succeeded.
STEP_RETRY: Final = "belay.dev/step-retry"
STEP_RETRIED: Final = "belay.dev/step-retried"

# Annotations of pods on simulated nodes.
# Source: docs, "Try it".

SIMULATED_EXIT_AFTER: Final = "sim.belay.dev/exit-after"
SIMULATED_EXIT_CODE: Final = "sim.belay.dev/exit-code"
SIMULATED_EXIT_NOW: Final = "sim.belay.dev/exit-now"
SIMULATED_FAIL_ON_FAULT: Final = "sim.belay.dev/fail-on-chip-fault"
SIMULATED_READY_AFTER: Final = "sim.belay.dev/ready-after"
#: Text that ``kubectl logs`` prints: simulated pods have no containers.
SANDBOX_LOG: Final = "sandbox.belay.dev/log"
