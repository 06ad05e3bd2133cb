"""What each account of Belay may do, as docs/threat-model.md lists it: ``make reference`` writes the section.

Verbs and kinds are those of `tests.rights`. A right to write also stands in `BOUNDS`, which say what admission leaves
of it: where, and of which objects what. `tests/test_doors.py` tries them on a real API server.
"""

from __future__ import annotations

import fnmatch
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from belay.engine.documents import KINDS
from belay.engine.documents.kinds import API_VERSION
from belay.engine.kube import resource_for
from belay.engine.serve.admission.rules import (
    GUARDED,
    JOB_PREFIXES,
    NODE_ANNOTATIONS,
    NODE_LABEL_PREFIXES,
    NODE_LABELS,
    SERVER_NODE_ANNOTATIONS,
    SERVER_PREFIXES,
    SERVER_RECORDS,
    reports_of,
)
from belay.engine.wire import superpods
from belay.engine.wire.names import NODE_NAMESPACE, NODE_PREFIX, RECOVERIES, SCHEDULER_NAMESPACE, SYSTEM
from belay.engine.wire.publicinfo import STATISTICS_NAMESPACE
from belay.engine.wire.reserved import CONTROL_PRIORITY, KUBERNETES, SYSTEM_NAMESPACES
from tests.rights import Right, needed

PAGE = Path(__file__).resolve().parents[1] / "docs" / "threat-model.md"
BEGIN, END = "<!-- rights: make reference -->", "<!-- end of rights -->"
NAMED_BEGIN, NAMED_END = "<!-- rights by name: make reference -->", "<!-- end of rights by name -->"
READS = frozenset({"get", "list", "watch"})
OWN = "<node>"
#: Namespaces, or names of cluster-wide objects, by a word of the table: those that are none of the listed ones.
BUT: Mapping[str, frozenset[str]] = {
    "(jobs)": GUARDED,
    "(not Kubernetes)": KUBERNETES,
    "(not Kubernetes, not Belay)": SYSTEM_NAMESPACES,
    f"(not {CONTROL_PRIORITY})": frozenset({CONTROL_PRIORITY}),
}
#: What Kubernetes itself lets each account do.
EVERYONE = frozenset(
    {
        Right("create", "authorization.k8s.io", "selfsubjectaccessreviews"),
        Right("create", "authorization.k8s.io", "selfsubjectrulesreviews"),
        Right("create", "authentication.k8s.io", "selfsubjectreviews"),
    }
)
#: What newer Kubernetes lets each ServiceAccount read.
EVERY_SERVICE_ACCOUNT = frozenset(Right(verb, "certificates.k8s.io", "clustertrustbundles") for verb in READS)


class Bound(NamedTuple):
    """What admission leaves of rights to write: objects by ``namespace/name``, or by name where they have no
    namespace, as patterns, in which ``<node>`` is the writer's node; ``on_node`` where they must be on it; and the
    parts that may change, all where none is named.
    """

    account: str
    verbs: str
    resources: str
    where: tuple[str, ...]
    changes: tuple[str, ...] = ()
    on_node: bool = False

    def about(self, right: Right) -> bool:
        """Whether it bounds the right."""
        return right.verb in self.verbs.split() and right_name(right) in self.resources.split()

    def allows(self, target: Target, node: str) -> bool:
        """Whether a writer on a node may write there."""
        here = any(_matches(pattern.replace(OWN, node), target) for pattern in self.where)
        return here and (not self.on_node or (target.node == node and bool(node)))

    def allows_change(self, part: str) -> bool:
        """Whether a part of an object may change, such as ``label servertype``."""
        return not self.changes or any(fnmatch.fnmatchcase(part, pattern) for pattern in self.changes)


class Target(NamedTuple):
    """An object that is written, and the node that it is on."""

    namespace: str
    name: str
    node: str = ""


def _matches(pattern: str, target: Target) -> bool:
    if not target.namespace:
        return _is(pattern, target.name)
    place, _, name = pattern.partition("/")
    return _is(place, target.namespace) and _is(name, target.name)


def _is(pattern: str, text: str) -> bool:
    if pattern in BUT:
        return not any(fnmatch.fnmatchcase(text, one) for one in BUT[pattern])
    return fnmatch.fnmatchcase(text, pattern)


def right_name(right: Right) -> str:
    """The resource with its group, as the table has it."""
    return f"{right.resource}.{right.group}" if right.group else right.resource


_LABELS = tuple(f"label {name}" for name in sorted(NODE_LABELS) + [f"{prefix}*" for prefix in NODE_LABEL_PREFIXES])
_JOBS = "(jobs)/*"
_OUTSIDE = "(not Kubernetes, not Belay)/*"
_OWN_KINDS = sorted(resource_for(API_VERSION, kind).plural for kind in KINDS if kind != "Source")
_OBJECTS = (
    "services persistentvolumeclaims deployments.apps statefulsets.apps jobs.batch jobs.batch.volcano.sh"
    " commands.bus.volcano.sh podgroups.scheduling.volcano.sh ascendjobs.mindxdl.gitee.com"
    " inferservicesets.mindcluster.huawei.com inferservices.mindcluster.huawei.com instancesets.mindcluster.huawei.com"
    " horizontalpodautoscalers.autoscaling resourceclaims.resource.k8s.io resourceclaims/binding.resource.k8s.io"
    " resourceclaims/status.resource.k8s.io jobs/status.batch.volcano.sh podgroups/status.scheduling.volcano.sh"
    " podgroups/status.scheduling.k8s.io"
    " ascendjobs/status.mindxdl.gitee.com inferservicesets/status.mindcluster.huawei.com"
    " inferservices/status.mindcluster.huawei.com instancesets/status.mindcluster.huawei.com"
)
_CLUSTER_WIDE = " ".join(
    [
        "nodes persistentvolumes queues.scheduling.volcano.sh queues/status.scheduling.volcano.sh",
        *(f"{kind}.belay.dev {kind}/status.belay.dev" for kind in _OWN_KINDS),
    ]
)
_REPORTS = tuple(sorted(f"{namespace}/{name}" for namespace, name in reports_of(OWN)))
_RECORDS = (
    *sorted(f"{namespace}/{name}" for namespace, name in SERVER_RECORDS),
    *sorted(f"{namespace}/{name}*" for namespace, name in SERVER_PREFIXES),
    *(f"(jobs)/{prefix}*" for prefix in JOB_PREFIXES),
)
BOUNDS = (
    Bound("belay-agent", "create patch", "configmaps", _REPORTS),
    Bound("belay-agent", "delete", "configmaps", (f"{NODE_NAMESPACE}/{NODE_PREFIX}{OWN}",)),
    Bound("belay-agent", "create", "events", ("kube-system/*",)),
    Bound(
        "belay-agent", "patch", "nodes/status", (OWN,),
        (*_LABELS, *(f"annotation {name}" for name in sorted(NODE_ANNOTATIONS))),
    ),
    Bound("belay-agent", "patch", "pods/status", ("*/*",), ("annotation *",), on_node=True),
    Bound("belay-agent", "create update delete", "resourceslices.resource.k8s.io", ("*",), on_node=True),
    Bound("belay-server", "create update delete", "configmaps", _RECORDS),
    Bound("belay-server", "create patch", "events", ("*/*",)),
    Bound("belay-server", "patch", "nodes/status", ("*",),
          tuple(f"annotation {name}" for name in sorted(SERVER_NODE_ANNOTATIONS))),
    Bound("belay-server", "patch", "pods/status podgroups.scheduling.volcano.sh", (_JOBS,),
          ("label *", "annotation *")),
    Bound("belay-server", "create update", "leases.coordination.k8s.io", (f"{SYSTEM}/belay-recovery*",)),
    Bound("belay-server", "create", "tokenreviews.authentication.k8s.io", ("*",)),
    Bound("belay-server", "create", "subjectaccessreviews.authorization.k8s.io", ("*",)),
    Bound("belay-engine", "create", "pods", (_OUTSIDE,)),
    Bound("belay-engine", "create", "pods/binding", (_OUTSIDE,)),
    Bound("belay-engine", "patch", "pods/status", (_OUTSIDE,)),
    Bound("belay-engine", "delete", "pods", (_JOBS,)),
    Bound("belay-engine", "create", "pods/eviction", (_JOBS,)),
    Bound("belay-engine", "create update patch delete", "configmaps", ("(not Kubernetes)/*",)),
    Bound("belay-engine", "create", "secrets", ("(jobs)/*-ssh",)),
    Bound("belay-engine", "create patch", "events", ("*/*",)),
    Bound("belay-engine", "create update", "leases.coordination.k8s.io",
          (f"{SYSTEM}/belay-shard-*", f"{SYSTEM}/belay-controller-*")),
    Bound("belay-engine", "create patch delete", _OBJECTS, (_OUTSIDE,)),
    Bound("belay-engine", "create patch", "namespaces", ("(not Kubernetes, not Belay)",)),
    Bound("belay-engine", "create patch delete", "priorityclasses.scheduling.k8s.io", (f"(not {CONTROL_PRIORITY})",)),
    Bound("belay-engine", "create patch delete", _CLUSTER_WIDE, ("*",)),
    Bound("belay-admission", "update", "validatingwebhookconfigurations.admissionregistration.k8s.io",
          ("belay-admission",)),
)  # fmt: skip


#: Placeholders of names that an installation without admission lists (deploy/components/without-admission).
_LISTED = "<namespace>/*"
_SERVER_NAMED = tuple(sorted(f"{namespace}/{name}" for namespace, name in SERVER_RECORDS))
_KEPT = tuple(f"{place}/*" for place in (SYSTEM, STATISTICS_NAMESPACE, NODE_NAMESPACE, SCHEDULER_NAMESPACE))
#: What is left of rights to write where nothing checks names: RBAC alone, and Kubernetes' NodeRestriction for agents,
#: which have the identity of their node.
DECLINED = (
    Bound("belay-agent", "patch", "configmaps", _REPORTS),
    Bound("belay-agent", "create", "events", ("*/*",)),
    Bound("belay-agent", "patch", "nodes/status", (OWN,)),
    Bound("belay-agent", "patch", "pods/status", ("*/*",), on_node=True),
    Bound("belay-agent", "create update delete", "resourceslices.resource.k8s.io", ("*",), on_node=True),
    Bound("belay-server", "create", "configmaps", (_LISTED, f"{RECOVERIES}/*")),
    Bound("belay-server", "update", "configmaps",
          (*_SERVER_NAMED, f"{superpods.NAMESPACE}/{superpods.PREFIX}<super-pod>", _LISTED, f"{RECOVERIES}/*")),
    Bound("belay-server", "delete", "configmaps", (f"{RECOVERIES}/*",)),
    Bound("belay-server", "create patch", "events", ("*/*",)),
    Bound("belay-server", "patch", "nodes/status", ("<listed node>",)),
    Bound("belay-server", "patch", "pods/status podgroups.scheduling.volcano.sh", (_LISTED,)),
    Bound("belay-server", "update", "leases.coordination.k8s.io", (f"{SYSTEM}/belay-recovery",)),
    Bound("belay-server", "create", "tokenreviews.authentication.k8s.io", ("*",)),
    Bound("belay-server", "create", "subjectaccessreviews.authorization.k8s.io", ("*",)),
    Bound("belay-engine", "create", "pods pods/binding pods/eviction secrets", (_LISTED,)),
    Bound("belay-engine", "delete", "pods", (_LISTED,)),
    Bound("belay-engine", "patch", "pods/status", (_LISTED,)),
    Bound("belay-engine", "create update patch delete", "configmaps", (_LISTED, *_KEPT)),
    Bound("belay-engine", "create patch", "events", ("*/*",)),
    Bound("belay-engine", "update", "leases.coordination.k8s.io",
          (f"{SYSTEM}/belay-shard-<shard>", f"{SYSTEM}/belay-controller-<shard>")),
    Bound("belay-engine", "create patch delete", _OBJECTS, (_LISTED,)),
    Bound("belay-engine", "patch", "namespaces", ("<namespace>",)),
    Bound("belay-engine", "create patch delete", "priorityclasses.scheduling.k8s.io", ("*",)),
    Bound("belay-engine", "create patch delete", _CLUSTER_WIDE, ("*",)),
)  # fmt: skip


def declined_bounds_of(account: str, right: Right, listed: Mapping[str, str]) -> tuple[Bound, ...]:
    """What bounds a right where nothing checks names; ``listed`` has the names (patterns) of the placeholders."""
    if right in EVERYONE:
        return ()
    found = []
    for bound in DECLINED:
        if bound.account == account and bound.about(right):
            where = [_with(pattern, listed) for pattern in bound.where]
            found.append(bound._replace(where=tuple(where)))
    return tuple(found) or (Bound(account, right.verb, right_name(right), ()),)


def _with(pattern: str, listed: Mapping[str, str]) -> str:
    for placeholder, name in listed.items():
        pattern = pattern.replace(placeholder, name)
    return pattern


def bounds_of(account: str, right: Right) -> tuple[Bound, ...]:
    """What bounds a right of an account."""
    return tuple(bound for bound in BOUNDS if bound.account == account and bound.about(right))


def _place(right: Right) -> str:
    where = right.namespace or "everywhere"
    return f"{where}, `{right.name}`" if right.name else where


def _left(account: str, right: Right) -> str:
    """What admission leaves of a right to write, as one cell."""
    parts = []
    for bound in bounds_of(account, right):
        here = [one for one in bound.where if not right.namespace or _is(one.partition("/")[0], right.namespace)]
        where = "all" if {"*", "*/*", f"{right.namespace}/*"} & set(here) else ", ".join(f"`{one}`" for one in here)
        where += " on the writer's node" if bound.on_node else ""
        changes = ", ".join(f"`{one}`" for one in bound.changes)
        parts.append(f"{where}: {changes} only" if changes else where)
    return "; ".join(dict.fromkeys(parts))


def section() -> str:
    """The rights of every account as tables."""
    lines = [BEGIN, ""]
    for account, rights in sorted(needed().items()):
        lines += [
            f"### `{account}`",
            "",
            "| may | what | where, by RBAC | of which admission leaves |",
            "|---|---|---|---|",
        ]
        lines += sorted(_rows(account, rights))
        lines.append("")
    return "\n".join([*lines, END])


def _rows(account: str, rights: Iterable[Right]) -> Iterable[str]:
    """One row for all resources with the same verbs in the same places."""
    verbs: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for right in sorted(rights):
        left = "" if right.verb in READS else _left(account, right)
        verbs[right_name(right), _place(right), left].append(right.verb)
    rows: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for (resource, place, left), found in verbs.items():
        rows[", ".join(found), place, left].append(f"`{resource}`")
    return (f"| {may} | {', '.join(what)} | {place} | {left} |" for (may, place, left), what in rows.items())


def named_section() -> str:
    """What each account may write in an installation without admission, as one table."""
    lines = [NAMED_BEGIN, "", "| account | may | what | where |", "|---|---|---|---|"]
    for bound in sorted(DECLINED):
        what = ", ".join(f"`{name}`" for name in bound.resources.split())
        everywhere = bound.where in (("*",), ("*/*",))
        where = "all" if everywhere else ", ".join(f"`{pattern}`" for pattern in bound.where)
        on_node = " on the writer's node" if bound.on_node else ""
        lines.append(f"| `{bound.account}` | {', '.join(bound.verbs.split())} | {what} | {where}{on_node} |")
    return "\n".join([*lines, "", NAMED_END])


def with_section(text: str) -> str:
    """The page with the sections as they are now."""
    for begin, end, made in ((BEGIN, END, section()), (NAMED_BEGIN, NAMED_END, named_section())):
        before, _, rest = text.partition(begin)
        text = f"{before}{made}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    PAGE.write_text(with_section(PAGE.read_text()))
