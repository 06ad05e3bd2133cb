"""`belay migrate check`: what of MindCluster runs, what Belay understands of it, the steps of the move."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click
import msgspec

from belay.engine.cli import output as show
from belay.engine.cli.mindcluster import COMPONENTS, CONFIG_MAPS, SAME, Component, known_flags
from belay.engine.model.labels import ACCELERATOR_TYPE, HUAWEI_PREFIX
from belay.engine.model.unstructured import nested_list, nested_map

_STEPS: Final = (
    (1, "scheduling and jobs", "kubectl -n volcano-system scale deployment volcano-scheduler volcano-controllers "
     "--replicas=0, then the operators of mindx-dl", "scale them up again: roles with `auto` go back within a pass"),
    (2, "ClusterD", "kubectl -n mindx-dl scale deployment clusterd --replicas=0; select belay server instead",
     "scale it up again; point the Service back"),
    (3, "the nodes", "node by node: a label that the old DaemonSets do not select, then deploy/overlays/nodes",
     "remove the label: the old DaemonSets return, pods keep their chips"),
)  # fmt: skip
_FLAG: Final = re.compile(r"--?([A-Za-z][\w-]*)(?:=(.*))?", re.S)
_IMAGE: Final = re.compile(r"(?:.*/)?([^/:@]+)(?::([^@]+))?(?:@.*)?")
_NAMESPACES: Final = frozenset({"kube-system", "mindx-dl", "volcano-system", "npu-exporter"})
MAX_NAMED: Final = 20


class FlagUse(msgspec.Struct, frozen=True):
    """A flag of a component: ``state`` is same, other or unknown; ``note`` what stands for it."""

    flag: str
    value: str
    state: str
    note: str = ""


class RunningComponent(msgspec.Struct, frozen=True, rename="camel"):
    """A component: how many pods run, their versions (image tags), its flags, and what becomes of it."""

    component: str
    step: int
    pods: int
    ready: int
    versions: tuple[str, ...]
    becomes: str
    flags: tuple[FlagUse, ...]


class ConfigMapUse(msgspec.Struct, frozen=True):
    """A ConfigMap or another thing: ``state`` is understood or unknown."""

    name: str
    state: str
    note: str


class MigrationStep(msgspec.Struct, frozen=True):
    """One side of the cluster that moves: which components, how, and the way back."""

    step: int
    side: str
    components: tuple[str, ...]
    do: str
    back: str


class Migration(msgspec.Struct, frozen=True, rename="camel"):
    """The answer. ``unknown`` are names that Belay does not understand."""

    components: tuple[RunningComponent, ...]
    nodes: dict[str, int]
    schedulers: dict[str, int]
    config_maps: tuple[ConfigMapUse, ...]
    steps: tuple[MigrationStep, ...]
    unknown: tuple[str, ...]


def examine(items: Sequence[Mapping[str, Any]]) -> Migration:
    """What the objects of a cluster say of MindCluster."""
    running = tuple(found for component in COMPONENTS if (found := _running(component, items)) is not None)
    maps = tuple(_config_maps(items))
    names = {row.component for row in running}
    steps = tuple(
        MigrationStep(
            number, side, tuple(sorted(c.name for c in COMPONENTS if c.step == number and c.name in names)), do, back
        )
        for number, side, do, back in _STEPS
        if any(c.step == number and c.name in names for c in COMPONENTS)
    )
    unknown = (
        *(f"flag -{use.flag} of {row.component}" for row in running for use in row.flags if use.state == "unknown"),
        *(f"ConfigMap {row.name}" for row in maps if row.state == "unknown"),
    )
    return Migration(running, _nodes(items), _schedulers(items), maps, steps, unknown)


def _of_kind(items: Sequence[Mapping[str, Any]], kind: str) -> Iterator[Mapping[str, Any]]:
    return (item for item in items if item.get("kind") == kind)


def _running(component: Component, items: Sequence[Mapping[str, Any]]) -> RunningComponent | None:
    pods = ready = 0
    versions: set[str] = set()
    flags: dict[str, str] = {}
    for pod in _of_kind(items, "Pod"):
        own = [(c, *_image(c)) for c in nested_list(pod, "spec", "containers")]
        labels = nested_map(pod, "metadata", "labels")
        if not any(name == component.image for _, name, _ in own) and not (
            # labels such as app=noded are common: only where MindCluster's images may have been renamed
            any(labels.get(key) == value for key, value in component.labels)
            and str(nested_map(pod, "metadata").get("namespace")) in _NAMESPACES
        ):
            continue
        pods += 1
        conditions = nested_list(pod, "status", "conditions")
        ready += any(row.get("type") == "Ready" and row.get("status") == "True" for row in conditions)
        for container, _, version in own:
            versions.add(version)
            flags.update(_flags(container))
    if not pods:
        return None
    known = known_flags(component)
    uses = tuple(_use(flag, value, known) for flag, value in sorted(flags.items()))
    return RunningComponent(
        component.name, component.step, pods, ready, tuple(sorted(versions)), component.becomes, uses
    )


def _image(container: Mapping[str, Any]) -> tuple[str, str]:
    """Name and tag of an image; registry and digest are left out."""
    found = _IMAGE.fullmatch(str(container.get("image") or ""))
    return (found[1], found[2] or "latest") if found else ("", "")


def _flags(container: Mapping[str, Any]) -> dict[str, str]:
    """The flags that a container is started with, also inside `bash -c` texts."""
    words: list[str] = []
    for field in ("command", "args"):
        for text in container.get(field) or []:
            try:
                words += shlex.split(str(text).replace(";", " ; "))
            except ValueError:
                words += str(text).split()
    found: dict[str, str] = {}
    for index, word in enumerate(words):
        match = _FLAG.fullmatch(word)
        if match is None or word in ("-c", "--"):
            continue
        following = words[index + 1] if index + 1 < len(words) else ""
        value = match[2] if match[2] is not None else "" if following.startswith("-") or following == ";" else following
        found[match[1]] = value[:200]
    return found


def _use(flag: str, value: str, known: Mapping[str, str]) -> FlagUse:
    note = known.get(flag)
    if note is None:
        return FlagUse(flag, value, "unknown", "not a flag of this component that Belay knows")
    return FlagUse(flag, value, "same") if note == SAME else FlagUse(flag, value, "other", note)


def _config_maps(items: Sequence[Mapping[str, Any]]) -> Iterator[ConfigMapUse]:
    counted: Counter[str] = Counter()
    strange: dict[str, str] = {}
    for raw in _of_kind(items, "ConfigMap"):
        metadata = nested_map(raw, "metadata")
        name, namespace = str(metadata.get("name")), str(metadata.get("namespace"))
        known = next((start for start in CONFIG_MAPS if name.startswith(start)), None)
        if known is not None:
            counted[known] += 1
        elif namespace in ("mindx-dl", "cluster-system", "volcano-system") and name != "kube-root-ca.crt":
            strange[f"{namespace}/{name}"] = "no part of Belay reads it; keep its component, or see docs/peer.md"
    for start, number in sorted(counted.items()):
        more = f"{start}… ({number})" if start.endswith("-") else start
        yield ConfigMapUse(more, "understood", CONFIG_MAPS[start])
    for name, note in sorted(strange.items())[:MAX_NAMED]:
        yield ConfigMapUse(name, "unknown", note)


def _nodes(items: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Nodes by their ``accelerator-type``, else by the NPU resource that they offer; others are left out."""
    found: Counter[str] = Counter()
    for node in _of_kind(items, "Node"):
        labels = nested_map(node, "metadata", "labels")
        offered = [name for name in nested_map(node, "status", "capacity") if str(name).startswith(HUAWEI_PREFIX)]
        if kind := labels.get(ACCELERATOR_TYPE) or next(iter(sorted(offered)), None):
            found[str(kind)] += 1
    return dict(sorted(found.items()))


def _schedulers(items: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Pods that ask for NPUs, by the scheduler that they name."""
    found: Counter[str] = Counter()
    for pod in _of_kind(items, "Pod"):
        spec = nested_map(pod, "spec")
        asked = [key for c in nested_list(spec, "containers") for key in nested_map(c, "resources", "limits")]
        if any(str(key).startswith(HUAWEI_PREFIX) for key in asked):
            found[str(spec.get("schedulerName") or "default-scheduler")] += 1
    return dict(sorted(found.items()))


def table(found: Migration) -> None:
    """Print the answer for people."""
    rows = [[r.component, ", ".join(r.versions), f"{r.ready}/{r.pods}", r.step, r.becomes] for r in found.components]
    show.table(("component", "version", "ready", "step", "becomes"), rows)
    flags = [
        [row.component, f"-{use.flag}", use.state, use.note]
        for row in found.components for use in row.flags if use.state != "same"
    ]  # fmt: skip
    for title, columns, lines in (
        ("Flags that differ:", ("component", "flag", "state", "note"), flags),
        ("ConfigMaps:", ("name", "state", "note"), [[row.name, row.state, row.note] for row in found.config_maps]),
    ):
        if lines:
            click.echo(f"\n{title}")
            show.table(columns, lines)
    counted = [f"{number} {name}" for name, number in found.nodes.items()]
    pods = [f"{number} of {name}" for name, number in found.schedulers.items()]
    click.echo(f"\nNodes with NPUs: {', '.join(counted) or 'none'}. Pods with NPUs: {', '.join(pods) or 'none'}.")
    if not found.components:
        click.echo("No component of MindCluster runs here: deploy/README.md installs Belay alone.")
    for step in found.steps:
        click.echo(show.plain(f"\nStep {step.step}: {step.side} ({', '.join(step.components)})"))
        click.echo(f"  do:   {step.do}\n  back: {step.back}")
    if found.unknown:
        named = "; ".join(found.unknown[:MAX_NAMED])
        click.echo(show.plain(f"\nNot understood: {named}. docs/migrating.md says what to do."))


__all__ = ["Migration", "examine", "table"]
