"""What each field of Belay's kinds means, in one sentence: editors and `kubectl explain` show it.

The JSON Schemas (``policies/schemas``) and the CRDs (``deploy/crds``) get their descriptions from here; a test fails
for a field without one, and for one that no longer exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_DOCUMENT: Final = {
    "apiVersion": "Group and version of Belay's kinds: belay.dev/v1alpha1.",
    "kind": "The kind of the document.",
    "metadata": "Name, labels and annotations; these kinds belong to no namespace.",
}

#: Field (as written in files) → meaning, by model.
DESCRIPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "Metadata": {
        "name": "Name of the document, unique for its kind.",
        "labels": "Labels of the copy in the cluster.",
        "annotations": "Annotations of the copy in the cluster.",
    },
    "NodePool": _DOCUMENT | {"spec": "Which nodes belong to the pool, and how they are reconciled."},
    "NodePoolSpec": {
        "selector": "Labels of the nodes that belong to the pool. A node in two pools stays in its previous one.",
        "product": "Name of a Product; without it each node's product follows from its labels.",
        "shard": "Pools of one shard are planned together, by one worker at a time.",
        "suspend": "Whether Belay leaves the pool's nodes as they are.",
    },
    "Selector": {
        "matchLabels": "Labels that must all have these values.",
        "matchExpressions": "Requirements that must all hold.",
    },
    "MatchExpression": {
        "key": "Key of the label.",
        "operator": "In, NotIn: the value is, or is not, among values. Exists, DoesNotExist: about the key alone.",
        "values": "Values for In and NotIn.",
    },
    "VNPULayout": _DOCUMENT | {"spec": "Which chips are cut into which vNPUs."},
    "VNPULayoutSpec": {
        "pool": "NodePool whose nodes have the layout; give pool or selector.",
        "selector": "Labels of the nodes that have the layout; give pool or selector.",
        "mode": "static: cut as listed in chips. dynamic: cut as pods need it. soft: shared without cutting.",
        "chips": "Which chips are cut how; without it all chips take part in mode dynamic or soft.",
        "whenBusy": "What happens while a chip that must be cut is in use: wait until it is free, or report an error.",
    },
    "ChipLayout": {
        "chips": "Chips of each node.",
        "templates": "Templates into which each of these chips is cut, in the order in which they are created.",
    },
    "FaultPolicy": _DOCUMENT | {"spec": "What fault codes mean, and what is done about them."},
    "FaultPolicySpec": {
        "scope": "Where the policy applies; without it everywhere.",
        "mode": "enforce: the policy is in force. shadow: what it would change is reported only.",
        "levels": "Level of fault codes, instead of that of the shipped tables.",
        "frequency": "Codes that raise a chip's level when they occur often.",
        "duration": "Codes that count only when they last.",
        "actions": "What is done about a chip with a level, by what it is used for.",
        "attempts": "How often chips are reset and jobs rescheduled.",
        "lemons": "Chips that fail again and again, which placement avoids among equals.",
        "tests": "Timelines of faults with what must follow; `belay validate` plays them.",
    },
    "PolicyScope": {
        "pools": "Names of NodePools; none: all.",
        "products": "Names of Products; none: all.",
        "nodes": "Names of nodes; none: all.",
        "workloads": "Kinds of work on the chip; none: all.",
    },
    "FrequencyRule": {
        "codes": "Fault codes; each is counted on its own.",
        "times": "Number of occurrences that raises the level.",
        "window": "Time within which they are counted, 60s to 240h.",
        "level": "Level that the chip gets.",
        "releaseAfter": "Time without the fault after which the level ends; without it a person ends it.",
    },
    "DurationRule": {
        "codes": "Fault codes; each is judged on its own.",
        "timeout": "Time that a fault must last to count, at most 10m.",
        "recover": "Time that it must be absent to end, at most 24h.",
        "level": "Level that the chip has meanwhile.",
    },
    "LevelActions": {
        "training": "Chip in use by training: ignore, keep (no new work), strategy (the job's subHealthyStrategy), "
        "reschedule (the pod is evicted), tolerate (healed under the pod).",
        "inference": "Chip in use by inference: ignore, keep (no new work), strategy, reschedule (the pod is evicted).",
        "idle": "Idle chip: ignore, isolate (no new work), reset (isolate and reset).",
    },
    "AttemptBudgets": {
        "reset": "How often one group of chips is reset.",
        "reschedule": "How often one job is rescheduled.",
    },
    "Attempts": {"max": "Most attempts.", "window": "Time within which they are counted."},
    "RepeatOffenderSettings": {
        "mode": "avoid: placement takes such chips only where no other is as good. off: failures are not remembered.",
        "halfLife": "Time in which a failure loses half of its weight, 1m to 8760h.",
        "threshold": "Weight of failures from which a chip is avoided.",
    },
    "PolicyTest": {
        "name": "Name of the test, for its messages.",
        "timeline": "Events in order of time.",
        "expect": "What must hold at which moments.",
    },
    "TimelineEvent": {
        "at": "Time since the start of the test.",
        "code": "Fault code.",
        "assertion": "occur: the fault begins, or occurs again. recover: it ends. once: an event without duration.",
        "node": "Node of the event; any name.",
        "chip": "Number of the chip.",
        "use": "What the chip is used for from then on.",
    },
    "Expectation": {
        "at": "Time since the start of the test; events of that moment count.",
        "node": "Node that is looked at.",
        "chip": "Number of the chip.",
        "level": "Worst level of the chip's planes.",
        "inService": "Whether new single-pod work may take the chip.",
        "distributed": "Whether new work of several pods may take it, too.",
        "action": "The action, in the words of spec.actions.",
    },
    "DiagnosisRules": _DOCUMENT | {"spec": "Lines of logs that say something about a failure."},
    "DiagnosisRulesSpec": {"rules": "Rules by code; a repository's rule replaces the shipped one of its code."},
    "DiagnosisRule": {
        "code": "Name of the event.",
        "role": "cause: may be the root. collective: the rank waited for others. symptom: follows from something else.",
        "match": "Alternatives; a line that holds every text of one of them is the event.",
        "sources": "Logs that it looks at: training, plog, device, inference, host; all without it.",
        "priority": "Of two causes at about the same time the one with the higher number is shown as the root.",
        "title": "What happened.",
        "advice": "What to do next.",
        "reference": "Public document that the rule follows.",
    },
    "LocalText": {"en": "The text in English.", "zh": "The text in Chinese."},
    "FaultTable": _DOCUMENT | {"spec": "Levels of the fault codes of one plane."},
    "FaultTableSpec": {
        "plane": "Where the codes come from: chips, network, nodes, switches, or other senders (public).",
        "severity": "Levels from low to high; a code under two levels has the higher.",
        "levels": "Codes by level.",
        "codes": "What is known of single codes.",
        "unlisted": "What a code means that no list contains.",
        "frequency": "Codes that raise the level when they occur often.",
        "duration": "Codes that count only when they last.",
        "senders": "Components whose messages count (plane public).",
    },
    "CodeDetail": {
        "plane": "Plane that the code concerns, where it is another than the table's.",
        "module": "Part of the hardware or software that reports it.",
        "kind": "Kind of the fault.",
        "description": "What is wrong, in words.",
    },
    "UnlistedRule": {
        "rule": "level: it gets a level. drop: it is not reported. reject: the message that contains it is refused.",
        "bySeverity": "Level by the severity that the event states.",
        "otherwise": "Level where the severity gives none.",
        "network": "Level of such a code on the parameter plane.",
    },
    "Isolation": _DOCUMENT | {"spec": "What is taken out of service, why and until when."},
    "IsolationSpec": {
        "nodes": "Nodes that take no new work.",
        "chips": "Chips that take no new work.",
        "reason": "Why; shown wherever the isolation is shown.",
        "until": "End of the isolation; without it the isolation ends when the document is removed.",
    },
    "IsolatedChips": {"node": "Name of the node.", "chips": "Its chips."},
    "SafetyBudget": _DOCUMENT | {"spec": "How much disruption is allowed, and when."},
    "SafetyBudgetSpec": {
        "limits": "Limits, all of which apply; actions without a limit are unlimited.",
        "repeats": "Limits on what is done to the same thing; actions that no budget names have 10 in 30m.",
        "windows": "Times in which actions may, or may not, run.",
    },
    "RepeatLimit": {
        "actions": "Actions that are counted, each kind apart.",
        "max": "How often within the window the same job may be evicted, pod or object created, chips reset or chip "
        "partitioned; the next one waits.",
        "window": "Time within which they are counted.",
    },
    "BudgetLimit": {
        "actions": "Actions that are counted together.",
        "per": "Scope within which they are counted.",
        "unit": "chips: deletions are counted by the chips that they free; without it as objects.",
        "max": "Most actions within the window; a percentage of what the scope holds, rounded down, at least 1.",
        "window": "Time within which they are counted.",
    },
    "MaintenanceWindow": {
        "kind": "allow: actions run only while such a window is open. deny: they do not run while it is open.",
        "schedule": "Starts of the window: five cron fields, or @daily and the like.",
        "duration": "Length of the window, at most 744h.",
        "timeZone": "Time zone of the schedule, such as Asia/Shanghai.",
        "actions": "Actions that the window concerns.",
        "pools": "NodePools that it concerns; none: all.",
    },
    "SchedulingSettings": _DOCUMENT | {"spec": "Settings that change decisions."},
    "SchedulingSettingsSpec": {
        "schedulerNames": "schedulerName of the pods that Belay places.",
        "defaultScheduler": "schedulerName of AscendJobs that name none.",
        "initParams": "Arguments of MindCluster's scheduler plugin (init-params), by their own names.",
        "queues": "Queues and their shares.",
        "starvation": "When nodes are reserved for a job that waits long.",
        "roles": "Roles of MindCluster and Volcano that Belay takes.",
        "notReadyDebounce": "For how long a node must have been NotReady before its jobs are moved; Kubernetes has "
        "waited its own grace period (40 s) by then.",
        "clusterDocuments": "Kinds of Belay whose objects in the cluster count although Git does not declare them.",
        "publicFaultSources": "Namespaces whose ConfigMaps with public faults count, and on which nodes.",
    },
    "PublicFaultSource": {
        "namespace": "Namespace of the ConfigMaps; * is every namespace.",
        "pools": "NodePools on whose nodes they count; none: all nodes.",
    },
    "InitParams": {
        "grace-over-time": "Seconds that evicted pods have to end, 2 to 3600.",
        "presetVirtualDevice": "true: vNPUs are static. false: they are cut as pods need them.",
        "nslb-version": "Version of switch affinity.",
        "shared-tor-num": "Most switches that a job shares with others, 1 or 2 (switch affinity 2.0).",
        "useClusterInfoManager": "Accepted for compatibility: whether the plugin reads ClusterD's aggregates.",
        "self-maintain-available-card": "true: free chips follow from pods. false: from the device plugin's list.",
        "super-pod-size": "Nodes of a super pod; 48 without it.",
        "reserve-nodes": "Nodes kept free in each super pod; 2 without it.",
        "forceEnqueue": "Whether NPU jobs enter their queue even where resources are short.",
        "resource-level-config": "JSON of the levels of network topology trees.",
        "prefer-previous-node": "Whether a rescheduled job prefers the nodes on which it ran.",
    },
    "Queue": {
        "name": "Name of the queue.",
        "weight": "Share of the cluster relative to other queues.",
        "priority": "Queues of higher priority are served first.",
        "parent": "Queue above this one.",
        "capability": "Most of each resource that the queue may use; without it everything.",
        "deserved": "Share of each resource, instead of what follows from weight.",
        "guarantee": "Amount of each resource that is kept free of other queues.",
        "reclaimable": "Whether queues below their share may evict what this one has beyond its own.",
        "preemptable": "Whether jobs of higher priority may evict others of this queue.",
        "movable": "Whether pods of its Deployments may be moved to other chips to make room.",
    },
    "Starvation": {
        "after": "Waiting time after which nodes are reserved for a job; 0s: never.",
        "hold": "Longest time for which they are reserved.",
    },
    "Roles": {
        "schedule": "Placing pods (Volcano with the NPU plugin).",
        "expandAscendJob": "Pods of AscendJobs (Ascend Operator).",
        "expandVolcanoJob": "Pods of Volcano Jobs (Volcano's controller).",
        "aggregate": "Aggregates of reports and of jobs (ClusterD).",
        "deviceReport": "Resets, node by node: `auto` where an agent lives and no device plugin runs beside it.",
    },
    "Source": _DOCUMENT | {"spec": "Where the desired state comes from."},
    "SourceSpec": {
        "url": "Address of the repository: file, ssh or https, without a password.",
        "branch": "Branch that is followed.",
        "path": "Folder of the repository that holds desired/ and policies/; without it the root.",
        "interval": "Time between two looks at the repository.",
        "verify": "How commits are verified.",
        "suspend": "Whether new commits are left alone.",
    },
    "Verify": {
        "mode": "none: commits are not verified. ssh, gpg: each needs a signature of that kind.",
        "allowedSigners": "File outside the repository that lists who may sign.",
        "anchor": "Commit that every revision must descend from.",
        "repository": "Name of the repository in trailers Belay-Source; without it the path of the URL.",
        "requireTrailer": "Whether each revision must have a trailer Belay-Source of this source.",
        "allowRewriteTo": "The one commit that may come into force without following the last accepted revision.",
    },
    "KVLink": _DOCUMENT | {"spec": "Which prefill clusters link to which decode clusters."},
    "KVLinkSpec": {
        "prefill": "Clusters that compute the cache.",
        "decode": "Clusters that use it; each links to every prefill cluster.",
        "timeout": "Time that one link may take, 1ms or longer.",
    },
    "KVSide": {
        "namespace": "Namespace of the selected pods.",
        "selector": "Labels of the pods; give selector or clusters.",
        "port": "Port on which the selected pods listen.",
        "clusters": "Clusters by their addresses; give selector or clusters.",
    },
    "KVCluster": {
        "id": "Number of the cluster.",
        "addresses": "Addresses, IPv4:port, on which it listens.",
        "node": "Node of its process; without it the node follows from the addresses.",
    },
    "Product": _DOCUMENT | {"spec": "A server model: its chips, its topology, the sizes that jobs may request."},
    "ProductSpec": {
        "title": "Name for people.",
        "resource": "Resource that pods request, such as huawei.com/Ascend910; * for a policy that runs on several.",
        "devicePrefix": "What the names of its devices begin with, such as Ascend910-.",
        "chipsPerNode": "Most chips that a server of it holds.",
        "usualChips": "Chips that a server of it usually holds.",
        "chipsPerCard": "Chips on one card.",
        "generation": "Generation of its chips; without it, it follows from devicePrefix.",
        "nodeLabels": "Sets of labels that identify its nodes; one set is enough.",
        "schedulePolicies": "Names of the affinity policies that jobs may request on it.",
        "acceleratorTypes": "Values of the node label accelerator-type.",
        "chipNames": "Names of its chips, as the driver reports them.",
        "placement": "Topology, and sizes that fit it.",
        "reset": "Which chips reset together.",
        "vnpu": "Ways in which its chips can be shared.",
    },
    "Placement": {
        "handler": "Family of topology rules.",
        "max": "Most chips that a pod may request.",
        "networkAware": "Whether distributed pods stay off chips with a broken parameter plane.",
        "single": "Numbers of chips that a single pod may request.",
        "distributed": "Numbers of chips that each pod of a distributed job may request.",
        "ringSize": "Chips that share fast links.",
        "options": "Options of the handler.",
        "strategies": "Alternatives that a job chooses by label.",
    },
    "PlacementStrategy": {
        "handler": "Family of topology rules.",
        "max": "Most chips that a pod may request.",
        "networkAware": "Whether distributed pods stay off chips with a broken parameter plane.",
        "single": "Numbers of chips that a single pod may request.",
        "distributed": "Numbers of chips that each pod of a distributed job may request.",
    },
    "ResetRule": {
        "groups": "Groups of chips that reset together.",
        "groupSize": "Size of such groups, from chip 0 on.",
        "scope": "Part of the server that resets together.",
        "outOfBand": "Whether the board controller resets it.",
    },
    "VNPUSupport": {
        "family": "Templates of this family; without it the chip's name selects them.",
        "serverTypes": "Values of label servertype on its nodes, where these select the templates.",
        "static": "Whether chips can be cut in advance.",
        "dynamic": "Whether chips can be cut as pods need it.",
        "soft": "Whether chips can be shared without cutting.",
    },
    "WorkloadKind": _DOCUMENT | {"spec": "How objects of the kind are read."},
    "WorkloadKindSpec": {
        "group": "API group of the kind; empty for the core group.",
        "versions": "Versions that the fields hold for, the preferred one first; the first that is served is watched.",
        "kind": "The kind, as objects name it.",
        "plural": "Its plural, as the API server serves it.",
        "together": "whole: all pods that ask for chips start together. groups: those of one group. none: each pod, or "
        "each workload that an object makes, starts for itself.",
        "roles": "Where the numbers of pods and their templates stand; pods whose template asks for chips are counted.",
        "minimum": "Fields with the number of pods that start together; the first one that is set counts, else all.",
        "stepwise": "Where it holds, pods are made one after the other, and none waits for the others.",
        "groupLabels": "Labels or annotations by which pods name their group; the first one that is set counts.",
        "size": "Fields of the object whose product is the number of pods in a group.",
        "sizeKeys": "Labels or annotations of pods that say how many pods their group has.",
        "podKeys": "Labels or annotations by which pods name the object, whatever controls them.",
        "rankKeys": "Labels or annotations with a pod's number.",
        "queue": "Field with the name of the queue.",
        "priorityClass": "Field with the name of the priority class.",
        "annotations": "Annotations that the pods' gang has, such as sp-block, by the fields that hold their values.",
    },
    "RoleFields": {
        "path": "The roles: * stands for every element of a list or a map; without it the object itself.",
        "replicas": "Fields of a role whose product is its number of pods.",
        "template": "Its pod template; one that cannot be read counts as asking for chips. Without this field, the "
        "number counts pods without chips, too.",
        "minimum": "Fields of a role whose product is how many of its pods start together; without it all.",
        "minimumWhen": "When that minimum is in force; without it always.",
    },
    "NumberField": {
        "path": "Fields joined by dots; a name with dots stands in brackets.",
        "default": "The number where the field is absent.",
    },
    "FieldCondition": {
        "path": "Fields joined by dots.",
        "values": "The values, as text.",
    },
    "VNPUTemplates": _DOCUMENT | {"spec": "Sizes into which chips of one family can be cut."},
    "VNPUTemplatesSpec": {
        "family": "Name of the family.",
        "resourcePrefix": "What the names of its vNPU resources begin with.",
        "chips": "What chips of the family have; the first row is for those that no other row names.",
        "templates": "Sizes of vNPUs.",
        "static": "Whether chips can be cut in advance.",
        "dynamic": "Whether chips can be cut as pods need it.",
        "soft": "Whether chips can be shared without cutting.",
        "rules": "How templates combine, and how requests choose among them.",
    },
    "ChipTotals": {
        "variant": "Name of the variant.",
        "chipNames": "Names of the chips, as the driver reports them.",
        "serverTypes": "Types of server that distinguish variants with the same chip names.",
        "aicore": "AI cores.",
        "aicpu": "AI CPUs.",
        "memoryMiB": "Memory in MiB.",
        "maxVnpus": "Most vNPUs on one chip.",
        "dvpp": "Media engines.",
        "unverified": "Fields whose value no public document states.",
    },
    "DVPP": {
        "vpc": "Engines that process images.",
        "vdec": "Video decoders.",
        "jpegd": "JPEG decoders.",
        "pngd": "PNG decoders.",
        "venc": "Video encoders.",
        "jpege": "JPEG encoders.",
    },
    "Template": {
        "name": "Name of the template, such as vir04_3c.",
        "suffix": "End of its resource name, such as 4c.3cpu.",
        "aicore": "AI cores.",
        "aicpu": "AI CPUs.",
        "memoryMiB": "Memory in MiB.",
        "memoryByAicore": "Memory in MiB on chips with that many AI cores.",
        "dvpp": "Media engines.",
        "dvppFlag": "yes: it takes all media engines. no: none.",
        "unverified": "Fields whose value no public document states.",
    },
    "VNPURules": {
        "requests": "Legal requests of AI cores besides multiples of a whole chip.",
        "choices": "Which template a dynamic request gets.",
        "downgrades": "Smaller templates for chips that are short of AI CPUs.",
        "vgroups": "Groups of cores into which a chip is divided.",
        "vgroupMinCores": "Fewest cores of such a group.",
        "excludedProducts": "Products without vNPUs.",
    },
    "DynamicChoice": {
        "aicore": "Requested AI cores.",
        "level": "Pod label vnpu-level for which the row holds.",
        "dvpp": "Pod label vnpu-dvpp for which the row holds.",
        "template": "Template that the pod gets.",
    },
    "Downgrade": {"template": "Template that does not fit.", "to": "Template to use instead."},
}


def described(schema: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of a model with the meaning of each field; changes and returns ``schema``.

    Text about the form of a value, such as a duration's, follows the meaning.
    """
    for model in (schema, *schema.get("$defs", {}).values()):
        meanings = DESCRIPTIONS.get(str(model.get("title")), {})
        for name, field in model.get("properties", {}).items():
            if name in meanings:
                form = field.get("description")
                field["description"] = f"{meanings[name]} Form: {form}." if form else meanings[name]
    return schema
