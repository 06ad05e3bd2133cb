"""Codes of what a pass finds: in reports, in objects of the cluster, and where the state that Git declares meets it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from belay.engine.model.codes.actions import EVENTS
from belay.engine.model.codes.conditions import CONDITIONS
from belay.engine.model.codes.rows import ExplainedCode as Row


class PassCode(StrEnum):
    """What a pass finds, as a word that stays; the reason of an Event or a condition where one says the same."""

    # reports
    REPORT_HELD = "ReportHeld"
    REPORT_REFUSED = "NodeReportRefused"
    REPORT_MISSING = "NodeReportMissing"
    REPORT_STALE = "NodeReportStale"
    CLOCK_AHEAD = "NodeClockAhead"
    AGENT_SILENT = "AgentSilent"
    STRANGER = "UnknownNodeReports"
    UNREADABLE = "UnreadableObject"
    # nodes, chips, faults
    MANY_NOT_READY = "ManyNodesNotReady"
    NODES_MISSING = "BoundToMissingNodes"
    HELD = "HoldInForce"
    RESETS_IN_VAIN = "RebootInVain"
    UNKNOWN_NODE = "UnknownNode"
    PRODUCT_CONTRADICTED = "ProductContradicted"
    TWO_POOLS = "NodeInTwoPools"
    NODES_LEFT = "NodesLeftPool"
    TABLE_OVERRIDDEN = "FaultTableOverridden"
    PUBLIC_FAULT_REFUSED = "PublicFaultRefused"
    PUBLIC_FAULTS_LEFT_OUT = "PublicFaultsLeftOut"
    POLICY_HELD_BACK = "PolicyHeldBack"
    SHADOW = "ShadowPolicy"
    SHADOWS_LEFT_OUT = "ShadowPoliciesLeftOut"
    # jobs and pods
    INVALID_JOB = "InvalidJob"
    INVALID_SERVICE = "ValidateError"
    FIELD_IGNORED = "FieldIgnored"
    UNKNOWN_COMMAND = "UnknownCommand"
    UNKNOWN_QUEUE = "QueueNotFound"
    RUNS_SMALLER = "SizeChanged"
    STAYS_WHOLE = "ElasticityRefused"
    RETRIES_NOT_COUNTED = "RetriesNotCounted"
    NOT_HEALED = "NotHealedInPlace"
    STAYS = "StaysOnFaultyChip"
    SUBSCRIPTIONS_LOST = "SubscribersLost"
    OLDER_TEMPLATE = "OlderTemplate"
    RANK_TABLE_WAITS = "RankTableWaits"
    EQUAL_RANKS = "EqualRanks"
    SCALING_REFUSED = "ScalingRuleRefused"
    NO_SNAPSHOT = "SnapshotMissing"
    QUEUE_BEYOND = "QueueBeyondCapability"
    # budgets
    BUDGET_UNREADABLE = "BudgetUnreadable"
    REPEATS = "ActionRepeats"
    EVICTION_REFUSED = "EvictionRefused"
    PRUNE_HELD = "PruneHeld"
    PRUNE_DELAYED = "PruneDelayed"
    # objects of Git
    SERVER_REFUSED = "RefusedByServer"
    DECLARES_NOTHING = "DeclaresNothing"
    RENAMED = "ObjectRenamed"
    FIELD_DROPPED = "FieldDropped"
    KEPT = "ObjectKept"
    IGNORED = "DocumentIgnored"
    # placement, links, layouts
    SETTING_IGNORED = "SettingIgnored"
    SCORES_LEFT_OUT = "ScoresLeftOut"
    UNKNOWN_SERVERS = "UnknownServers"
    LINKS_LEFT_OUT = "LinksLeftOut"
    NO_LINK = "NothingToLink"
    LINK_MEMBER_REFUSED = "LinkMemberRefused"
    LAYOUT_REFUSED = "LayoutRefused"
    LAYOUT_WAITS = "LayoutWaits"
    LAYOUT_ORDERED = "LayoutOrdered"


_FAULT: Final = "concepts/fault.md"
_REPORT: Final = "concepts/report.md"
_POLICY: Final = "concepts/fault-policy.md"
_JOBS: Final = "workloads.md"
_BUDGET: Final = "concepts/budget.md"
_STATUS: Final = "status.md"
_LINKS: Final = "kv-links.md"
_LAYOUT: Final = "concepts/vnpu-layout.md"
_AGENT_CHECK: Final = "Read the log of the agent's or device plugin's pod on that node."

PASSES: Final[Mapping[str, Row]] = {
    PassCode.REPORT_HELD: Row(
        "A report says something so unlikely that it is not used yet; the last good one stays in force.",
        "All chips of a node vanish at once, or another node's chips are reported.",
        "Wait for the next report, which decides. If it says the same, look at the driver on the node.", _REPORT,
    ),
    PassCode.REPORT_REFUSED: Row(
        "A node's report is damaged, so the last good one stays in force.",
        "Its check code does not fit, or it is cut short.", _AGENT_CHECK, _REPORT,
    ),
    PassCode.REPORT_MISSING: Row(
        "A node with NPUs has no device report, so nothing new is placed there.",
        "Neither Belay's agent nor a device plugin of MindCluster runs on it.",
        "Start one of them; belay status names the node.", _REPORT,
    ),
    PassCode.REPORT_STALE: Row(
        "A node's report is too old, so nothing new is placed there. What runs there stays.",
        "The agent or device plugin stopped, or cannot reach the API server.", _AGENT_CHECK, _REPORT,
    ),
    PassCode.CLOCK_AHEAD: Row(
        "A report comes from the future and is treated as written now.",
        "The node's clock is ahead.", "Set the node's clock (chrony, ntpd).", _REPORT,
    ),
    PassCode.AGENT_SILENT: Row(
        "A node's agent has not reported for too long, so its list of processes is not used.",
        "Its pod stopped, or cannot reach the API server.", "Read the log of the agent's pod.", "concepts/agent.md",
    ),
    PassCode.STRANGER: Row(
        "A report names a node that the cluster does not have, so it is ignored.",
        "The node was deleted, or has not registered yet.",
        "Register the node, or delete the ConfigMap.", _REPORT,
    ),
    PassCode.UNREADABLE: Row(
        "An object of the cluster cannot be read, or a part of it; the last good version counts where there is one.",
        "It was edited by hand, is cut short, or was written by another version.",
        "Correct the field that is named, or delete the object where something writes it again.",
        "mindcluster-formats.md",
    ),
    PassCode.MANY_NOT_READY: Row(
        "So many nodes became NotReady at once that the control plane is suspected; nothing is evicted for that.",
        "A network or API server outage.", "Check the network and the API server; this ends with the outage.", _FAULT,
    ),
    PassCode.NODES_MISSING: Row(
        "Pods are bound to nodes that the cluster does not list; nothing is evicted for that while there are many.",
        "Nodes were deleted, or the API server lost part of its data.",
        "Restore the nodes, or delete their pods where the nodes never come back.", _FAULT,
    ),
    PassCode.HELD: Row(
        "A chip or node is kept out of use by a hold.",
        "A person's isolation, repeated faults, a reset that is pending or has failed.",
        "belay explain chip NODE/CHIP says when each ends; belay release ends one made by hand.", "concepts/hold.md",
    ),
    PassCode.RESETS_IN_VAIN: Row(
        "A fault is still there after all resets and a reboot that the policy allows.",
        "Broken hardware.", "Have a person look at the node, and replace the card.", "concepts/reset.md",
    ),
    PassCode.UNKNOWN_NODE: Row(
        "A document or a public fault names a node that the cluster does not have.",
        "A misspelling, or a node that has not registered yet.",
        "Correct the name; it takes effect once such a node registers.", "concepts/isolation.md",
    ),
    PassCode.PRODUCT_CONTRADICTED: Row(
        "What a node reports does not fit the product that its pool or labels name, so its chips are not reset or cut.",
        "A wrong spec.product, wrong labels, or a server of another kind in the pool.",
        "Correct the product to one that the message names.", "concepts/product.md",
    ),
    PassCode.TWO_POOLS: Row(
        "The selectors of two pools match one node; it stays in the pool that it was in.",
        "", "Let only one selector match.", "concepts/node-pool.md",
    ),
    PassCode.NODES_LEFT: Row(
        "An edit of a pool or of labels moved nodes into another pool.",
        "", "If that was not meant, correct the selector; belay rollback undoes the commit.", "concepts/node-pool.md",
    ),
    PassCode.TABLE_OVERRIDDEN: Row(
        "The repository and a ConfigMap of the cluster both hold a table of faults; the repository's counts.",
        "", "Remove one of the two.", _POLICY,
    ),
    PassCode.PUBLIC_FAULT_REFUSED: Row(
        "A public fault, or a part of it, does not count.",
        "A field that is missing or wrong, or a namespace or pool from which none are taken.",
        "Correct the field that is named, or allow the namespace in the setting.", _FAULT,
    ),
    PassCode.PUBLIC_FAULTS_LEFT_OUT: Row(
        "There are more public faults than are kept, so some are not.",
        "A sender that never reports an end.", "Have the sender report recoveries, or delete old ConfigMaps.", _FAULT,
    ),
    PassCode.POLICY_HELD_BACK: Row(
        "A change of policies alone would isolate, reset or evict more than the budget allows; the version before it "
        "stays in force.",
        "A code was given a level that is too high, or a scope that is too wide.",
        "Narrow the policy, raise the budget, or try it with mode: shadow.", _POLICY,
    ),
    PassCode.SHADOW: EVENTS["ShadowPolicy"],
    PassCode.SHADOWS_LEFT_OUT: Row(
        "There are more policies in mode shadow than are tried.", "",
        "Remove those that have been judged, or put them in force.", _POLICY,
    ),
    PassCode.INVALID_JOB: Row(
        "A job cannot be run as it is written: it gets no new pods.",
        "A field has a value that its kind does not take.",
        "Correct the field that is named and push; pods that run stay.", _JOBS,
    ),
    PassCode.INVALID_SERVICE: EVENTS["ValidateError"],
    PassCode.FIELD_IGNORED: Row(
        "A field, annotation or label of a job has no effect, or its default counts.",
        "A misspelt value, or a field that another one overrides.",
        "Write what the message asks for.", _JOBS,
    ),
    PassCode.UNKNOWN_COMMAND: Row(
        "A Command of Volcano asks for what cannot be done.", "", "Delete the Command, or write another action.", _JOBS,
    ),
    PassCode.UNKNOWN_QUEUE: Row(
        "A job names a queue that is missing or does not take it; its pods run on, new ones wait.",
        "The queue was deleted or renamed.", "Create the queue, or name another one.", "concepts/queue.md",
    ),
    PassCode.RUNS_SMALLER: Row(
        "An elastic job runs with fewer pods or chips than it declares, or has room to grow back.",
        "A fault took chips that nothing replaces yet.",
        "Nothing: it grows back when there is room. belay explain job says what it waits for.", "concepts/recovery.md",
    ),
    PassCode.STAYS_WHOLE: Row(
        "A job is labelled elastic and cannot become smaller as it is written.",
        "", "Change what the message names, or remove the label.", "concepts/recovery.md",
    ),
    PassCode.RETRIES_NOT_COUNTED: Row(
        "fault-retry-times has no effect on a pod, as kubelet restarts its containers.",
        "restartPolicy is Always or OnFailure.", "Set restartPolicy: Never.", "concepts/recovery.md",
    ),
    PassCode.NOT_HEALED: Row(
        "Chips could not be healed under a running job, so it is rescheduled.",
        "", "Nothing: the job goes on from its checkpoint.", "concepts/recovery.md",
    ),
    PassCode.STAYS: Row(
        "A pod stays on a chip with a fault while its processes are restarted in place.",
        "", "Nothing: without progress the pod is evicted at the time that is named.", "concepts/recovery.md",
    ),
    PassCode.SUBSCRIPTIONS_LOST: Row(
        "The server that controllers of inference services subscribed to is gone, so the engine reschedules for them.",
        "The belay server is down or has no gRPC.", "Start a belay server with gRPC again.", _FAULT,
    ),
    PassCode.OLDER_TEMPLATE: Row(
        "Running pods have an older template than Git declares.",
        "The job's manifest changed while it ran.",
        "It takes effect when the job restarts; belay suspend and belay resume restart it.", _JOBS,
    ),
    PassCode.RANK_TABLE_WAITS: Row(
        "A job's rank table cannot be completed.", "A pod's annotation of its chips is missing or wrong.",
        "Read the message; the device plugin writes that annotation.", "concepts/rank-table.md",
    ),
    PassCode.EQUAL_RANKS: Row(
        "Two pods of a job have the same rank, so HCCL cannot start.", "Ranks that were written by hand.",
        "Give each pod a rank of its own, or none.", "concepts/rank-table.md",
    ),
    PassCode.SCALING_REFUSED: Row(
        "A rule or policy that scales a job cannot be used, so the job keeps its size.",
        "The ConfigMap is missing, or a field of it is wrong.", "Correct what the message names.", _JOBS,
    ),
    PassCode.NO_SNAPSHOT: Row(
        "An instance of an inference service has no snapshot to start from.",
        "Its folder is not named, or saving failed or took too long.",
        "Name the folder, or read the log of the node's agent.", _JOBS,
    ),
    PassCode.QUEUE_BEYOND: Row(
        "The jobs of a queue use more than it may use: running pods stay, new ones wait.",
        "Its capability was lowered.", "Raise the capability, or let jobs end.", "concepts/queue.md",
    ),
    PassCode.BUDGET_UNREADABLE: Row(
        "A safety budget, or what is spent of it, cannot be read, so nothing disruptive is done.",
        "A damaged document or ConfigMap.", "Correct it; the record of what is spent may be deleted.", _BUDGET,
    ),
    PassCode.REPEATS: EVENTS["ActionRepeats"],
    PassCode.EVICTION_REFUSED: EVENTS["EvictionRefused"],
    PassCode.PRUNE_HELD: EVENTS["PruneHeld"],
    PassCode.PRUNE_DELAYED: Row(
        "Deletions wait until the safety budget has room again; then they go without confirmation.",
        "Many documents were removed within its window.",
        "Wait, belay confirm DIGEST to go on now, or restore the documents.", _BUDGET,
    ),
    PassCode.SERVER_REFUSED: CONDITIONS["RefusedByServer"],
    PassCode.DECLARES_NOTHING: Row(
        "The repository declares nothing, so what it declared before stays.",
        "A folder or branch vanished.", "Restore the documents; to remove everything keep one document.", _STATUS,
    ),
    PassCode.RENAMED: Row(
        "A document's name changed: Kubernetes renames nothing, so a new object starts and the old one goes.",
        "", "Restore the name if its pods should run on.", _STATUS,
    ),
    PassCode.FIELD_DROPPED: Row(
        "The API server drops a declared field, so it has no effect.",
        "The cluster's CustomResourceDefinition is older than the document.",
        "Renew the definition (Belay's are in deploy/crds), or take the field out.", "upgrading.md",
    ),
    PassCode.KEPT: Row(
        "An object is no longer declared and still stays.",
        "An annotation keeps it, or others still depend on it.",
        "Delete it by hand where it should go.", _STATUS,
    ),
    PassCode.IGNORED: Row(
        "An object of Belay's kinds in the cluster has no effect.",
        "It did not come from Git, or Git no longer declares it.",
        "Commit it to the repository, or delete it.", _STATUS,
    ),
    PassCode.SETTING_IGNORED: Row(
        "A setting of the scheduler's configuration is not read.", "A misspelling, or a setting that Belay lacks.",
        "Correct or remove it.", "migrating.md",
    ),
    PassCode.SCORES_LEFT_OUT: Row("A plan holds the scores of the first pods only.", "", "Ask for fewer pods."),
    PassCode.UNKNOWN_SERVERS: Row(
        "The imported switches name servers that are no nodes; nothing is placed there.",
        "An address that changed, or a server that left.", "Import the switches again.", "concepts/super-pod.md",
    ),
    PassCode.LINKS_LEFT_OUT: Row(
        "There are more links than a cluster, a node or a status holds, so some are left out.",
        "", "Split the KVLink, or select fewer pods.", _LINKS,
    ),
    PassCode.NO_LINK: Row(
        "A KVLink links nothing, or less than it declares.",
        "No pod of a side runs yet, or neither side runs in this cluster.",
        "Start the pods, or correct the selector or addresses.", _LINKS,
    ),
    PassCode.LINK_MEMBER_REFUSED: Row(
        "A pod or cluster of a KVLink is left out.",
        "Its number is missing or taken by another one, or it has no IPv4 address.",
        "Correct what the message names.", _LINKS,
    ),
    PassCode.LAYOUT_REFUSED: Row(
        "A chip cannot be cut or shared as a VNPULayout asks.",
        "It does not exist, another document covers it, or its product has no such template.",
        "Correct spec.chips; belay new layout offers what fits.", _LAYOUT,
    ),
    PassCode.LAYOUT_WAITS: Row(
        "A chip is in use, so it is cut as its layout says when that ends.",
        "", "Wait, or move the pod that the message names.", _LAYOUT,
    ),
    PassCode.LAYOUT_ORDERED: Row(
        "A node has the order to cut chips as a layout says, and its agent has not answered yet.",
        "", "Wait. Where it lasts, look at the agent's pod on that node.", _LAYOUT,
    ),
}  # fmt: skip
