"""`docs/workloads.md`: the text below with the table of the shipped rows; `make reference` writes it."""

from __future__ import annotations

from pathlib import Path

from belay.engine.load import load, shipped_policies
from belay.engine.model.workload_kinds import Condition, Factor, StartTogether, WorkloadRole, WorkloadRow

PAGE = Path(__file__).resolve().parents[1] / "docs" / "workloads.md"
_TEXT = """# Which pods start together

The table is written by `make reference` from `policies/workloads/`; a test fails when this page and the rows differ.

Without any declared minimum, the pods of one workload that ask for chips start together or not at all. The workload is
the object that people made, at the end of the chain of controllers: `PyTorchJob pt`, not the pods' own controller or a
PodGroup made for it. `belay get jobs`, `belay explain job` and the reasons of waiting pods name that object.

- Its object says how many pods there are. Until so many are there, none is placed, and the reason is `GangIncomplete`
  with the number that lacks. A waiting gang holds no chips.
- Pods without chips, such as launchers and heads, are placed with those that are there, and none waits for one that
  comes later.
- An annotation `huawei.com/schedule_minAvailable` and the `minMember` of a PodGroup come before the object's numbers.
- A kind without a row: the pods of one controller start together. As nothing says how many they are, they wait until
  none has come for 5 seconds. The same holds where Belay may not read the object.
- `Deployment`, `ReplicaSet`, `StatefulSet`, `Job`, AscendJobs and Volcano's Jobs are read as
  [before](concepts/gang.md): `Job` as many pods as run at once, `StatefulSet` all where `podManagementPolicy` is
  `Parallel`.

## The rows

| kind | start together | how many | in force before that | other |
|---|---|---|---|---|
{rows}

`A × B` is a product of fields; `*` stands for every element. Only roles whose pod template asks for chips are counted,
where the row names the template.

## A row for a kind of your own

A document `WorkloadKind` in `policies/` of your repository; the fields are in the
[reference](reference/kinds/workloadkind.md). One of the name of a shipped row replaces it, and one for the same kind
comes before it.

    apiVersion: belay.dev/v1alpha1
    kind: WorkloadKind
    metadata: {{name: trial}}
    spec:
      group: example.org
      versions: [v1]
      kind: Trial
      plural: trials
      roles:
        - {{path: spec.roles.*, replicas: [{{path: replicas}}], template: template}}

`belay validate` checks it; with `--crds PATH`, a file or folder that holds the CustomResourceDefinition of the kind, or
with `--cluster live`, it also names fields that the kind does not have, at file:line:col, and groups, versions and
plurals that are not served. The engine needs the right to read the kind: `belay schema --rights policies` prints a
ClusterRole that Kubernetes adds to the engine's by its label (`belay.dev/reads-workloads`); those of the shipped rows
are in `deploy/base/workloads.yaml`. Kinds that the cluster does not serve are not asked for: a definition that comes
later is noticed at once.

## Kueue in front

Kueue decides when a job may start, Belay where, and that its pods start together. Tried with Kueue 0.17 on Kubernetes
1.37:

- A suspended Job has no pods, so Belay sees nothing of it. Once Kueue admits it, its pods start together as any Job's.
- Pods that Kueue manages itself (`kueue.x-k8s.io/pod-group-name` and the annotation
  `kueue.x-k8s.io/pod-group-total-count`) are held by its scheduling gates. The reason is `SchedulingGated`, with the
  gates and the LocalQueue that admits them. Kueue removes the gates pod by pod; Belay binds none before all of the
  group are free of them.
- With topology-aware scheduling (`kueue.x-k8s.io/podset-required-topology`, `podset-preferred-topology`), Kueue writes
  the node or domain of each pod into its `nodeSelector`. Belay keeps to it: all of these pods get their places there,
  or none does. Kueue knows nothing of rings, super pods and broken chips, so name in its Topology levels that these do
  not cut through, or leave topology to Belay.

**Who owns the quota.** A job that Kueue has admitted counts in Kueue's queues and in none of Belay's: its queue is
shown as `kueue.x-k8s.io/NAMESPACE/LOCALQUEUE`, capabilities of Volcano's queues do not hold it back, and what it uses
is not divided among them. What Kueue has admitted, its `Workload` says: with the condition `Admitted` and an owner
reference to the job's object or to each of its pods, and for at most as many pods as it has admitted. Labels say
nothing, as any author of pods may write them. So Workloads and their status must stay with Kueue's controller and
administrators, as with its own roles. Without such a Workload, or without the right to read them, a job counts in
Belay's queues; so does one of which Kueue has admitted a part only. Kueue sees none of these jobs: give each chip to
one of the two, for example by a ClusterQueue whose quota is what Volcano's queues leave. With
`SchedulingSettings.spec.kueueQuota: queues` every job counts in Belay's queues; then Kueue's ClusterQueues should cover
no chips.

## Two kinds are called PodGroup

From Kubernetes 1.37 on a cluster may serve `podgroups` of `scheduling.k8s.io` beside Volcano's, and coscheduling has a
third. `kubectl get podgroups` shows one of them, whichever group comes first. Write the group:

    kubectl get podgroups.scheduling.volcano.sh -A
    kubectl get podgroups.scheduling.k8s.io -A

Belay's own output names Volcano's `PodGroup` plainly, and the others with their group, as kubectl does:
`belay explain job train/PodGroup.scheduling.k8s.io/pg`.

## PodGroups of Kubernetes itself

Pods that name one in `spec.schedulingGroup` start as its `spec.schedulingPolicy` says: with `gang` at least `minCount`
together or none, with `basic` as they would without a group. Pods whose group is not there yet wait for it. Belay
writes the condition that Kubernetes' own scheduler writes: `PodGroupInitiallyScheduled` (`PodGroupScheduled` in
`v1alpha2`), `False` with the reason `Unschedulable` and why, then `True` with `Scheduled`, which stays. The versions
`v1beta1`, `v1alpha3` and `v1alpha2` are read. The group's topology constraints, its disruption mode, its claims and
CompositePodGroups are not read yet. A Job that has its group made is called by its own name.
"""


def shipped_rows() -> tuple[WorkloadRow, ...]:
    """The rows that ship with Belay, by name."""
    files = {path: body for path, body in shipped_policies().items() if path.startswith("policies/workloads/")}
    declared = load({}, shipped=files).desired.workloads
    return tuple(declared[name].document.row() for name in sorted(declared))


def text() -> str:
    """The page."""
    rows = sorted(shipped_rows(), key=lambda row: (row.group, row.kind))
    return _TEXT.format(rows="\n".join(map(_line, rows)))


def _line(row: WorkloadRow) -> str:
    kind = f"`{row.kind}`" + (f" ({row.group})" if row.group else "")
    cells = (kind, _together(row), _number(row), _minimum(row), _other(row))
    return "| " + " | ".join(cells) + " |"


def _together(row: WorkloadRow) -> str:
    if row.together is StartTogether.NONE:
        return "each for itself"
    return f"pods of one group: {_keys(row.group_labels)}" if row.together is StartTogether.GROUPS else "all"


def _number(row: WorkloadRow) -> str:
    if row.together is StartTogether.NONE:
        return ""
    parts = [f"{_keys(row.size_keys)} of the pods"] if row.size_keys else []
    parts += [_product((), row.size)] if row.size else []
    parts += [_product(role.path, role.factors) + _of_template(role) for role in row.roles]
    return "; ".join(parts) or "what an object that it makes says"


def _of_template(role: WorkloadRole) -> str:
    return "" if role.template else " (all pods)"


def _minimum(row: WorkloadRow) -> str:
    parts = [f"`{'.'.join(path)}`" for path in row.minimum]
    for role in row.roles:
        if role.minimum:
            when = f" where {_condition(role.minimum_when)}" if role.minimum_when else ""
            parts.append(_product(role.path, role.minimum) + when)
    return "; ".join(parts)


def _other(row: WorkloadRow) -> str:
    parts = [f"one pod after the other where {_condition(row.stepwise)}"] if row.stepwise else []
    parts += [f"pods name it by {_keys(row.pod_keys)}"] if row.pod_keys else []
    parts += [f"ranks: {_keys(row.rank_keys)}"] if row.rank_keys else []
    return "; ".join(parts)


def _condition(condition: Condition) -> str:
    return f"`{'.'.join(condition.path)}` is `{'`, `'.join(condition.values)}`"


def _product(path: tuple[str, ...], factors: tuple[Factor, ...]) -> str:
    if not factors:
        return f"1 for `{'.'.join(path)}`"
    return " × ".join(f"`{'.'.join((*path, *factor.path))}`" for factor in factors)


def _keys(keys: tuple[str, ...]) -> str:
    return ", ".join(f"`{key}`" for key in keys)


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
