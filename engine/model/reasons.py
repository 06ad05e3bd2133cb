"""Reasons of actions (``Action.reason``), which Events and status show.

Beside these: ``Job<phase>``, ``<Kind>Missing`` and ``<Kind>Changed`` of the objects that jobs own, names of events that
a job's policies answer, and what preemption found.
"""

from __future__ import annotations

from enum import StrEnum


class ActionReason(StrEnum):
    """Why an action is planned."""

    CARD_UNHEALTHY = "CardUnhealthy"
    CHIP_FAULT = "ChipFault"
    ELASTIC_GROWTH = "ElasticGrowth"
    EXITED_WITH_CODE = "ExitedWithCode"
    GANG_INCOMPLETE = "GangIncomplete"
    GRACE_TIME_EXCEEDED = "GraceTimeExceeded"
    HOSTS_CHANGED = "HostsChanged"
    HOSTS_MISSING = "HostsMissing"
    HOT_SWITCH = "HotSwitch"
    INSTANCE_UNHEALTHY = "InstanceUnhealthy"
    JOB_ENDING = "JobEnding"
    JOB_FINISHED = "JobFinished"
    JOB_RESTART = "JobRestart"
    JOB_RETRY = "JobRetry"
    JOB_STATUS_CHANGED = "JobStatusChanged"
    KEYS_MISSING = "KeysMissing"
    LAYOUT_DIFFERS = "LayoutDiffers"
    LAYOUT_ON_DEMAND = "LayoutOnDemand"
    LAYOUT_REMOVED = "LayoutRemoved"
    LINKS_DECLARED = "LinksDeclared"
    MANUAL_ISOLATION = "ManualIsolation"
    MISSING = "Missing"
    MOVED = "Moved"
    NODE_FAULT = "NodeFault"
    NODE_UNHEALTHY = "NodeUnhealthy"
    ONLINE_RESET = "OnlineReset"
    PLACED = "Placed"
    POD_FAILED = "PodFailed"
    POD_GROUP_CHANGED = "PodGroupChanged"
    POD_GROUP_MISSING = "PodGroupMissing"
    POD_MISSING = "PodMissing"
    POD_RESCHEDULE = "PodReschedule"
    POLICY_RESTART = "PolicyRestart"
    PROCESS_EXCEPTION = "ProcessException"
    PRUNED = "Pruned"
    RANK_ASSIGNED = "RankAssigned"
    RANK_TABLE_CLEARED = "RankTableCleared"
    RANK_TABLE_COMPLETED = "RankTableCompleted"
    RECOVERED = "Recovered"
    RECOVERY_CHOSEN = "RecoveryChosen"
    RELATION_FAULT = "RelationFault"
    RELATION_FAULT_SEPARATE = "RelationFaultSeparate"
    REPORT_CLEAN = "ReportClean"
    RESETS_FAILED = "ResetsFailed"
    ROLE_REMOVED = "RoleRemoved"
    SCALED_DOWN = "ScaledDown"
    SEGMENT_FAILED = "SegmentFailed"
    SERVICE_MISSING = "ServiceMissing"
    STATUS_CHANGED = "StatusChanged"
    TTL_EXPIRED = "TTLExpired"
