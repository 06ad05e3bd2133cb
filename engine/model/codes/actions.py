"""Codes of what Belay does and of what happens: reasons of actions and Events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from belay.engine.model.codes.rows import ExplainedCode as Row
from belay.engine.model.notices import NoticeEvent
from belay.engine.model.reasons import ActionReason as Reason

_RECOVERY: Final = "concepts/recovery.md"
_RESET: Final = "concepts/reset.md"
_VNPU: Final = "concepts/vnpu-layout.md"
_FAULT: Final = "concepts/fault.md"
_ISOLATION: Final = "concepts/isolation.md"
_JOBS: Final = "workloads.md"
_NOTICES: Final = "notifications.md"

ACTIONS: Final[Mapping[str, Row]] = {
    # health
    Reason.CARD_UNHEALTHY: Row("A card under the job is unhealthy.", "", "belay explain node NODE names the fault.",
                               _FAULT),
    Reason.CHIP_FAULT: Row("A chip has a fault that its policy answers so.", "",
                           "belay explain chip NODE/CHIP names code, level and rule.", _FAULT),
    Reason.NODE_FAULT: Row("A node has a fault that its policy answers so.", "", "belay explain node NODE.", _FAULT),
    Reason.NODE_UNHEALTHY: Row("The node is not ready or unhealthy.", "It is down, or kubelet does not answer.",
                               "Bring it back.", _FAULT),
    Reason.RELATION_FAULT: Row("Faults that belong together are judged as one.", "", "", _FAULT),
    Reason.RELATION_FAULT_SEPARATE: Row("Faults that belong together separate the node.", "", "", _FAULT),
    Reason.MANUAL_ISOLATION: Row("A person took nodes or chips out of service.", "", "belay release gives them back.",
                                 _ISOLATION),
    Reason.MAINTENANCE: Row("The node is emptied for maintenance.", "", "belay release gives it back.", _ISOLATION),
    Reason.REPORT_CLEAN: Row("The newest report is clean, so the chip or node is back.", "", "", _FAULT),
    Reason.ONLINE_RESET: Row("Chips are reset, as nothing uses them.", "", "", _RESET),
    Reason.RESETS_FAILED: Row("Resets did not help, so the chip stays out.", "The hardware is broken.",
                              "Look at the chip's driver log; replace the card.", _RESET),
    # recovery
    Reason.PROCESS_EXCEPTION: Row("A training process failed.", "A fault under it, or an error of the program.",
                                  "belay diagnose JOB finds the first failure.", _RECOVERY),
    Reason.POD_FAILED: Row("A pod failed.", "", "kubectl logs, belay diagnose JOB.", _RECOVERY),
    Reason.POD_RESCHEDULE: Row("One pod alone is started elsewhere.", "", "", _RECOVERY),
    Reason.HOT_SWITCH: Row("A spare pod takes over before the faulty one ends.", "", "", _RECOVERY),
    Reason.GRACE_TIME_EXCEEDED: Row("A pod did not end within its grace time and is deleted.",
                                    "The program ignores SIGTERM, or its node is gone.", "", _RECOVERY),
    Reason.ELASTIC_GROWTH: Row("A job that ran smaller starts again with all its pods.", "", "", _RECOVERY),
    Reason.RECOVERY_CHOSEN: Row("A way of recovery was chosen by its cost.", "", "belay explain job JOB shows them.",
                                _RECOVERY),
    Reason.RECOVERED: Row("The job runs again.", "", "", _RECOVERY),
    Reason.GANG_INCOMPLETE: Row("Pods that start together are no longer all there, so the whole job starts again.",
                                "One was deleted, failed or refused by its node.", "", "concepts/gang.md"),
    Reason.EXITED_WITH_CODE: Row("A container ended with a code after which its pod is restarted.", "", "", _RECOVERY),
    Reason.JOB_RESTART: Row("The job restarts.", "", "", _RECOVERY),
    Reason.JOB_RETRY: Row("A pod failed, and the job is tried again as a whole.", "", "", _RECOVERY),
    Reason.POLICY_RESTART: Row("A policy of the job restarts pods.", "", "", _JOBS),
    Reason.MOVED: Row("A pod moves to make room.", "", "belay explain job JOB says for whom.", "concepts/queue.md"),
    Reason.SEGMENT_FAILED: Row("The job gets no shared segment and is ended.", "", "", _JOBS),
    # placement
    Reason.PLACED: Row("The pods were given nodes and chips.", "", "", "concepts/gang.md"),
    Reason.CLAIM_ALLOCATED: Row("A resource claim was given devices.", "", "", "dra.md"),
    Reason.CLAIM_RELEASED: Row("A resource claim gave its devices back.", "", "", "dra.md"),
    Reason.CLAIM_MISSING: Row("A resource claim that a pod needs is created.", "", "", "dra.md"),
    Reason.CLAIM_NAMED: Row("A pod was given the name of its resource claim.", "", "", "dra.md"),
    Reason.VOLUME_CHOSEN: Row("A volume was chosen for a claim.", "", "", _JOBS),
    Reason.LAYOUT_DIFFERS: Row("Chips are cut as their VNPULayout says.", "", "", _VNPU),
    Reason.LAYOUT_ON_DEMAND: Row("A vNPU is made for a pod that asks for it.", "", "", _VNPU),
    Reason.LAYOUT_REMOVED: Row("vNPUs are removed, as no layout asks for them.", "", "", _VNPU),
    Reason.LINKS_DECLARED: Row("Links of prefill and decode clusters are made as declared.", "", "", "kv-links.md"),
    # Git
    Reason.MISSING: Row("A declared object does not exist and is created.", "", "", "status.md"),
    Reason.PRUNED: Row("An object's document is gone from Git, so it is deleted.", "",
                       "Restore the document, or give the object belay.dev/prune: disabled.", "acts.md"),
    Reason.STATUS_CHANGED: Row("The conditions of a document changed.", "", "", "status.md"),
    # jobs
    Reason.COMMAND_ISSUED: Row("A command of Volcano's was carried out.", "", "", _JOBS),
    Reason.GAVE_WAY: Row("An instance that waits makes room for a role that comes first.", "", "", _JOBS),
    Reason.HOSTS_CHANGED: Row("The job's list of hosts changed.", "", "", _JOBS),
    Reason.HOSTS_MISSING: Row("The job's list of hosts is created.", "", "", _JOBS),
    Reason.INSTANCE_INCOMPLETE: Row("An instance lost pods and starts again as a whole.", "", "", _JOBS),
    Reason.INSTANCE_OUTDATED: Row("An instance starts again with the changed template.", "", "", _JOBS),
    Reason.INSTANCE_UNHEALTHY: Row("An instance has a sick pod and starts again.", "", "", _JOBS),
    Reason.JOB_ENDING: Row("The job ends, and its pods with it.", "", "", _JOBS),
    Reason.JOB_FINISHED: Row("The job is finished, and what it no longer needs is removed.", "", "", _JOBS),
    Reason.JOB_STATUS_CHANGED: Row("The job's status changed.", "", "", _JOBS),
    Reason.JOB_SUSPENDED: Row("The job is suspended, and its pods are removed.", "", "belay resume JOB.", "acts.md"),
    Reason.KEYS_MISSING: Row("The Secret with the job's SSH keys is created.", "", "", _JOBS),
    Reason.POD_GROUP_CHANGED: Row("The job's PodGroup changed.", "", "", _JOBS),
    Reason.POD_GROUP_MISSING: Row("The job's PodGroup is created.", "", "", _JOBS),
    Reason.POD_MISSING: Row("A pod that the job wants is created.", "", "", _JOBS),
    Reason.RANK_ASSIGNED: Row("A pod was given its rank.", "", "", "concepts/rank-table.md"),
    Reason.RANK_TABLE_CLEARED: Row("The rank table is emptied until all pods are placed.", "", "",
                                   "concepts/rank-table.md"),
    Reason.RANK_TABLE_COMPLETED: Row("All pods are placed, so the rank table is complete.", "", "",
                                     "concepts/rank-table.md"),
    Reason.ROLE_REMOVED: Row("An inference service no longer has this role.", "", "", _JOBS),
    Reason.SCALED_DOWN: Row("The job wants fewer pods.", "", "", _JOBS),
    Reason.SCALING_REMOVED: Row("A role no longer scales, so its autoscaler is deleted.", "", "", _JOBS),
    Reason.SERVICE_MISSING: Row("The job's Service is created.", "", "", _JOBS),
    Reason.SNAPSHOT: Row("The state of an instance is kept with its objects.", "", "", _JOBS),
    Reason.TTL_EXPIRED: Row("The finished job's time to live is over, so it is deleted.", "", "", _JOBS),
}  # fmt: skip

NOTICES: Final[Mapping[str, Row]] = {
    NoticeEvent.FAULT: Row("A chip, node or switch has a fault.", "", "belay get faults.", _NOTICES),
    NoticeEvent.RECOVERY: Row("A job that a fault hit is brought back.", "", "belay get recoveries.", _NOTICES),
    NoticeEvent.EVICTION: Row("A pod is asked to go.", "", "belay explain job JOB says why.", _NOTICES),
    NoticeEvent.WAIT: Row("A job waits.", "", "belay explain job JOB names the way out.", _NOTICES),
    NoticeEvent.REFUSED_REVISION: Row("A commit, or a part of it, cannot be used.", "",
                                      "belay status lists the findings; correct them and push.", _NOTICES),
    NoticeEvent.HELD_DELETION: Row("Deletions wait for a commit that confirms them.", "",
                                   "belay confirm DIGEST lets them be done; belay rollback restores the documents.",
                                   _NOTICES),
    NoticeEvent.FINDING: Row("Belay found something that a person should know.", "", "belay status.", _NOTICES),
    NoticeEvent.ISOLATION: Row("Chips or nodes are taken out of service.", "",
                               "belay get isolations says why and until when.", _NOTICES),
    NoticeEvent.ISOLATION_END: Row("An isolation has ended.", "", "belay get isolations.", _NOTICES),
}  # fmt: skip

EVENTS: Final = {
    "EventReleaseUpgradeFault": Row("A higher level that repeated faults had led to has ended.", "", "", _FAULT),
    "ShadowPolicy": Row("A policy in mode shadow decides otherwise here; only enforced ones count.", "",
                        "belay status lists what; spec.mode: enforce puts it in force.", "concepts/fault-policy.md"),
    "ActionRepeats": Row("The same action came too often and is stopped.", "Two controllers undo each other's work.",
                         "Find the other writer: kubectl get -o yaml --show-managed-fields.", "concepts/action.md"),
    "EvictionRefused": Row("A PodDisruptionBudget refuses an eviction.", "", "Raise it, or end the pod by hand.",
                           "concepts/budget.md"),
    "PruneHeld": Row("A deletion waits for a person.", "", "belay confirm DIGEST, or belay rollback.", "acts.md"),
    "Scheduled": Row("The pod has a node and chips.", "", "", "concepts/gang.md"),
    "FailedScheduling": Row("The pod waits.", "", "belay explain pod POD gives the reason and the way out.",
                            "reference/pending.md"),
    "ValidateError": Row("An inference service cannot be expanded as it is written.", "", "Correct what is named.",
                         _JOBS),
    "ServiceCreateError": Row("The API server refuses an instance's Service.", "", "Read the server's words.", _JOBS),
    "ScalingResourceReconcileError": Row("The API server refuses the autoscaler of an instance.", "",
                                         "Read the server's words.", _JOBS),
    "PodCreateFailed": Row("The API server refuses a pod of the job.", "A quota, or an admission policy.",
                           "Read the server's words.", _JOBS),
    "SyncPodGroupFailed": Row("The API server refuses the PodGroup of the job.", "", "Read the server's words.", _JOBS),
    "SyncServiceFailed": Row("The API server refuses the Service of the job.", "", "Read the server's words.", _JOBS),
}  # fmt: skip
