"""What each act changes in a state repository: files in, changed files out.

An edit names the documents that it needs by kind and name, and refuses with the nearest names where there is none.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from belay.engine.cli.acts import splices
from belay.engine.documents.scalars import parse_chips
from belay.engine.errors import InputError
from belay.engine.load import yaml12
from belay.engine.load.files import is_document
from belay.engine.model.labels import BELAY_PREFIX
from belay.engine.model.times import parse_rfc3339, rfc3339

JOB_KINDS: Final[Mapping[str, Sequence[str]]] = {
    "AscendJob": ("spec", "replicaSpecs", "Worker", "replicas"),
    "Deployment": ("spec", "replicas"),
    "StatefulSet": ("spec", "replicas"),
    "ReplicaSet": ("spec", "replicas"),
    "LeaderWorkerSet": ("spec", "replicas"),
    "InstanceSet": ("spec", "replicas"),
    "Job": ("spec", "parallelism"),
}
"""Kinds of jobs, and where the number of their pods stands."""
_PRIORITY: Final[Mapping[str, Sequence[str]]] = {
    "AscendJob": ("spec", "runPolicy", "schedulingPolicy", "priorityClass"),
    "Deployment": ("spec", "template", "spec", "priorityClassName"),
    "StatefulSet": ("spec", "template", "spec", "priorityClassName"),
    "ReplicaSet": ("spec", "template", "spec", "priorityClassName"),
    "Job": ("spec", "template", "spec", "priorityClassName"),
}
_SUSPENDED: Final[Mapping[str, Sequence[str]]] = {
    "NodePool": ("spec", "suspend"),
    "AscendJob": ("spec", "runPolicy", "suspend"),
    "Job": ("spec", "suspend"),
}
"""Kinds that can be suspended, and where it is said."""
_VOLCANO: Final = "batch.volcano.sh/"
_MINIMUM: Final = ("spec", "runPolicy", "schedulingPolicy", "minAvailable")
_ISOLATIONS: Final = "desired/isolations"


@dataclass(frozen=True)
class PlacedDocument:
    """A document of the repository: its file, its number within the file (from 0), and its value."""

    file: str
    number: int
    body: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """The kind, such as ``AscendJob``."""
        return str(self.body.get("kind"))

    @property
    def name(self) -> str:
        """``NAMESPACE/NAME`` of a job, the name alone of a document of Belay's."""
        metadata = self.body.get("metadata") or {}
        name = str(metadata.get("name"))
        return name if str(self.body.get("apiVersion")).startswith(BELAY_PREFIX) else f"{_namespace(metadata)}/{name}"

    @property
    def names(self) -> tuple[str, ...]:
        """What a person may type for it."""
        return self.name, self.name.rpartition("/")[2], f"{self.kind}/{self.name}"

    @property
    def is_volcano(self) -> bool:
        """Whether this is a job of Volcano's, whose pods stand in tasks."""
        return str(self.body.get("apiVersion")).startswith(_VOLCANO)


@dataclass(frozen=True)
class RepositoryEdit:
    """Changed files (None removes one), the subject, and the commands that undo the act, or what finds them at last.

    ``revert``: after these commands the commit is reverted, too; where there are none, it is reverted in any case.
    ``only_while``: what must hold for the way back to be one; empty where it always is.
    """

    files: Mapping[str, bytes | None]
    subject: str
    undo: tuple[str, ...] | Callable[[], tuple[str, ...]] = ()
    revert: bool = False
    only_while: str = ""

    @property
    def reverted(self) -> bool:
        """Whether reverting the commit is a part of the way back."""
        return self.revert or not self.undo


@dataclass(frozen=True)
class Freed:
    """What a release took out of an Isolation, and the Isolation's own words."""

    target: NodeOrChips
    reason: str
    until: str


@dataclass(frozen=True)
class NodeOrChips:
    """A node, or some chips of it."""

    node: str
    chips: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.node}/{','.join(map(str, self.chips))}" if self.chips else self.node


def target(text: str) -> NodeOrChips:
    """``NODE`` or ``NODE/CHIPS`` (``node-3/4``, ``node-3/4-5,7``, ``node-3/Ascend910-4``).

    Raises:
        InputError: the chips are no numbers.
    """
    node, slash, chips = text.partition("/")
    named = chips.rpartition("-")[2] if chips.startswith("Ascend") else chips
    try:
        found = tuple(sorted(parse_chips(named))) if slash else ()
    except ValueError as error:
        raise InputError(f"{error}", where=text, hint="Write NODE, NODE/4 or NODE/4-5,7") from error
    if not node:
        raise InputError("there is no node name", where=text, hint="Write NODE or NODE/4")
    return NodeOrChips(node, found)


def isolate(
    files: Mapping[str, bytes], targets: Sequence[NodeOrChips], reason: str, until: float | None
) -> RepositoryEdit:
    """One more Isolation. Raises InputError where one of the same name exists."""
    name = "-".join(str(one).lower().replace("/", "-").replace(",", "-").replace(".", "-") for one in targets)[:63]
    name = name.rstrip("-")
    known = [one for one in documents(files, "Isolation") if one.name == name]
    if known:
        raise InputError("this is isolated already", where=f"{known[0].file}: Isolation/{name}")
    body = _isolation(name, targets, reason, until)
    kept = [one.file for one in documents(files, "Isolation")]
    # an existing file of isolations is where a person would write the next; a file of comments only counts, too
    file = f"{_ISOLATIONS}.yaml" if f"{_ISOLATIONS}.yaml" in files else f"{_ISOLATIONS}/{name}.yaml"
    if f"{_ISOLATIONS}.yaml" not in files and kept and all(path == kept[0] for path in kept) and len(kept) > 1:
        file = kept[0]
    text = text_of(files[file], file) if file in files else ""
    what = ", ".join(map(str, targets))
    end = f" until {rfc3339(until)}" if until is not None else ""
    # a release takes a target out of every Isolation
    alone = not any(_isolated_by_another(files, one) for one in targets)
    undo = ("belay release " + " ".join(map(str, targets)),) if alone else ()
    return RepositoryEdit({file: splices.with_document(text, body).encode()}, f"Isolate {what}{end}", undo)


def _isolated_by_another(files: Mapping[str, bytes], one: NodeOrChips) -> bool:
    """Whether `belay release` of the target would touch an Isolation of these files, or be refused because of it."""
    for found in documents(files, "Isolation"):
        try:
            if _part_of(found.body.get("spec") or {}, one) is not None:
                return True
        except (InputError, ValueError):
            return True
    return False


def release(files: Mapping[str, bytes], targets: Sequence[NodeOrChips], now: float) -> RepositoryEdit:
    """Take nodes or chips out of the Isolations that name them; an Isolation of nothing goes.

    The way back keeps the reason and the end of each; what no `belay isolate` makes again, such as an Isolation that
    has ended, is brought back by reverting the commit.

    Raises:
        InputError: no Isolation names one of them, or one names it together with other chips in one text.
    """
    changed: dict[str, bytes | None] = dict(files)
    freed: list[Freed] = []
    for one in targets:
        freed += _release_one(changed, one)
    done = {path: data for path, data in changed.items() if data != files.get(path)}
    return RepositoryEdit(done, f"Release {', '.join(map(str, targets))}", _isolated_again(freed, now))


def _isolated_again(freed: Sequence[Freed], now: float) -> tuple[str, ...]:
    """One `belay isolate` for each reason and end; none where that would not bring back what there was."""
    if len({one.target for one in freed}) < len(freed):
        return ()  # two Isolations named one target: the second would be refused
    together: dict[tuple[str, str], list[str]] = {}
    for one in freed:
        if one.until and not _is_to_come(one.until, now):
            return ()
        together.setdefault((one.reason, one.until), []).append(str(one.target))
    return tuple(
        f"belay isolate {' '.join(targets)} --reason {shlex.quote(reason)}" + (f" --until {until}" if until else "")
        for (reason, until), targets in together.items()
    )


def _is_to_come(until: str, now: float) -> bool:
    try:
        return parse_rfc3339(until) > now
    except ValueError:
        return False


def scale(files: Mapping[str, bytes], name: str, replicas: int, task: str = "") -> RepositoryEdit:
    """Change the number of a job's pods; ``task`` names the task of a job of Volcano's.

    Of an AscendJob it is the number of workers; where all its pods had to start together, they still have to.
    """
    job, typed = _job(files, name)
    text, path = text_of(files[job.file], job.file), _replicas_path(job, task)
    old = _value(job.body, path, 1)
    text = splices.with_value(text, job.number, path, replicas)
    tail = f" --task {task}" if task else ""
    undo: tuple[str, ...] = (f"belay scale {typed} {old}{tail}",)
    if job.kind == "AscendJob":
        pods, minimum = _pods(job.body), _value(job.body, _MINIMUM, None)
        if minimum == pods:
            text = splices.with_value(text, job.number, _MINIMUM, pods - old + replicas)
        elif minimum == pods - old + replicas:
            undo = ()  # scaled back, all its pods would have to start together from then on
    return RepositoryEdit({job.file: text.encode()}, f"Scale {job.kind} {job.name} from {old} to {replicas}", undo)


def prioritise(files: Mapping[str, bytes], name: str, priority: str) -> RepositoryEdit:
    """Give a job another PriorityClass."""
    job, typed = _job(files, name)
    path = ("spec", "priorityClassName") if job.is_volcano else _PRIORITY.get(job.kind)
    if path is None:
        raise InputError(f"{job.kind} has no priority of its own", where=f"{job.file}: {job.name}",
                         hint="Its roles have: edit the document")  # fmt: skip
    old = _value(job.body, path, "")
    text = splices.with_value(text_of(files[job.file], job.file), job.number, path, priority)
    undo = (f"belay priority {typed} {old}",) if old else ()
    return RepositoryEdit({job.file: text.encode()}, f"Set the priority of {job.kind} {job.name} to {priority}", undo)


def suspend(files: Mapping[str, bytes], name: str, wanted: bool) -> RepositoryEdit:
    """Suspend or resume a NodePool (no new pods), an AscendJob or a Job of Kubernetes (their pods end)."""
    found = [one for one in documents(files) if one.kind in _SUSPENDED and not one.is_volcano]
    one, typed = _one_named(name, found, "NodePool, AscendJob or Job of Kubernetes")
    path = _SUSPENDED[one.kind]
    if bool(_value(one.body, path, False)) == wanted:
        raise InputError(
            "it is suspended already" if wanted else "it is not suspended",
            where=f"{one.file}: {one.name}",
            code="NothingToChange",
        )
    text = splices.with_value(text_of(files[one.file], one.file), one.number, path, wanted)
    verb, back = ("Suspend", "resume") if wanted else ("Resume", "suspend")
    return RepositoryEdit({one.file: text.encode()}, f"{verb} {one.kind} {one.name}", (f"belay {back} {typed}",))


def change_policy(
    files: Mapping[str, bytes],
    name: str,
    *,
    levels: Mapping[str, str] = MappingProxyType({}),
    dropped: Sequence[str] = (),
    mode: str = "",
    frequency: Sequence[Mapping[str, Any]] = (),
    duration: Sequence[Mapping[str, Any]] = (),
) -> RepositoryEdit:
    """Change a FaultPolicy: levels of codes (``dropped`` go back to the table's), its mode, more rules.

    Raises:
        InputError: the repository declares no such policy, or it gives one of the dropped codes no level.
    """
    found = [one for one in documents(files) if one.kind == "FaultPolicy"]
    rows = [one for one in found if one.name == name]
    if len(rows) != 1:
        raise _none_or_many("FaultPolicy", name, rows, found)
    one = rows[0]
    text, spec = text_of(files[one.file], one.file), ("spec",)
    for code, level in levels.items():
        text = splices.with_value(text, one.number, (*spec, "levels", code), level)
    for code in dropped:
        named = _value(splices.bodies(text)[one.number], (*spec, "levels"), {})
        # a mapping without entries would be a document without levels, which is refused
        only = list(named) == [code]
        text = splices.without(text, one.number, (*spec, "levels") if only else (*spec, "levels", code))
    if mode:
        text = splices.with_value(text, one.number, (*spec, "mode"), mode)
    for key, rules in (("frequency", frequency), ("duration", duration)):
        for rule in rules:
            text = splices.with_item(text, one.number, (*spec, key), _in_braces(rule))
    return RepositoryEdit({one.file: text.encode()}, f"Change FaultPolicy {name}")


def _in_braces(rule: Mapping[str, Any]) -> str:
    """A rule of a policy as a person writes it in one line."""
    parts = []
    for key, value in rule.items():
        codes = f"[{', '.join(splices.quoted(str(code)) for code in value)}]" if isinstance(value, list) else ""
        parts.append(f"{key}: {codes or (value if isinstance(value, int) else splices.written(str(value)))}")
    return "{" + ", ".join(parts) + "}"


def documents(files: Mapping[str, bytes], kind: str = "") -> Iterator[PlacedDocument]:
    """The documents of a tree that can be read, of one kind or of all; those inside Lists are left out."""
    for path in sorted(files):
        if not is_document(path) or path.endswith(".json") or (kind and kind.encode() not in files[path]):
            continue
        try:
            bodies = splices.bodies(text_of(files[path], path))
        except (InputError, yaml12.YAMLProblem):
            continue  # a file that cannot be read declares nothing that an act could change
        for number, body in enumerate(bodies):
            if isinstance(body, dict) and (not kind or body.get("kind") == kind):
                yield PlacedDocument(path, number, body)


def _job(files: Mapping[str, bytes], name: str) -> tuple[PlacedDocument, str]:
    return _one_named(name, [one for one in documents(files) if one.kind in JOB_KINDS], "job")


def _one_named(name: str, known: Sequence[PlacedDocument], what: str) -> tuple[PlacedDocument, str]:
    """The only document of this name, and how to name it to a later command: as short as names nothing else."""
    rows = [one for one in known if name in one.names]
    if len(rows) != 1:
        raise _none_or_many(what, name, rows, known)
    (found,) = rows
    shared = sum(found.name in one.names for one in known) > 1
    return found, f"{found.kind}/{found.name}" if shared else found.name


def _none_or_many(what: str, name: str, rows: Sequence[PlacedDocument], known: Sequence[PlacedDocument]) -> InputError:
    if rows:
        several = ", ".join(f"{one.kind}/{one.name} ({one.file})" for one in rows[:5])
        return InputError(f"several documents have this name: {several}", where=name,
                          hint="Write NAMESPACE/NAME or KIND/NAMESPACE/NAME")  # fmt: skip
    names = [one.name for one in known]
    near = difflib.get_close_matches(name, [*names, *(one.rpartition("/")[2] for one in names)], 1)
    hint = f"Did you mean {near[0]}?" if near else "Name one that this repository declares"
    return InputError(f"the repository declares no {what} of this name", where=name, hint=hint)


def _replicas_path(job: PlacedDocument, task: str) -> Sequence[str | int]:
    if not job.is_volcano:
        if task:
            raise InputError(
                "only jobs of Volcano's have tasks", where=f"{job.file}: {job.name}", hint="Leave --task out"
            )
        path = JOB_KINDS[job.kind]
        if job.kind == "AscendJob" and "Worker" not in _value(job.body, ("spec", "replicaSpecs"), {}):
            raise InputError("this AscendJob has no workers to scale", where=f"{job.file}: {job.name}")
        return path
    tasks = [str(one.get("name")) for one in _value(job.body, ("spec", "tasks"), []) if isinstance(one, dict)]
    if not task and len(tasks) == 1:
        return ("spec", "tasks", 0, "replicas")
    if task not in tasks:
        raise InputError(f"its tasks are {', '.join(tasks) or 'none'}", where=f"{job.file}: {job.name}",
                         hint="Name one: --task NAME")  # fmt: skip
    return ("spec", "tasks", tasks.index(task), "replicas")


def _pods(body: Mapping[str, Any]) -> int:
    specs = _value(body, ("spec", "replicaSpecs"), {})
    return sum(_value(spec, ("replicas",), 1) for spec in specs.values() if isinstance(spec, dict))


def _release_one(files: dict[str, bytes | None], one: NodeOrChips) -> list[Freed]:
    """Edits ``files``; what the Isolations that named the target say."""
    freed: list[Freed] = []
    present = {path: data for path, data in files.items() if data is not None}
    for found in reversed(list(documents(present, "Isolation"))):
        spec = found.body.get("spec") or {}
        path = _part_of(spec, one)
        if path is None:
            continue
        freed.append(Freed(one, str(spec.get("reason", "")), str(spec.get("until") or "")))
        data = files[found.file]
        assert data is not None
        text = text_of(data, found.file)
        parts = len(spec.get("nodes") or ()) + len(spec.get("chips") or ())
        if parts > 1:
            siblings = spec.get(str(path[1])) or ()
            edited = splices.without(text, found.number, path if len(siblings) > 1 else path[:2])
        else:
            edited = splices.without_document(text, found.number)
        empty = not splices.bodies(edited)
        files[found.file] = None if empty and "#" not in edited else edited.encode()
    if not freed:
        raise InputError("no Isolation of this repository names it", where=str(one),
                         hint="belay explain says what holds it")  # fmt: skip
    return freed


def _part_of(spec: Mapping[str, Any], one: NodeOrChips) -> tuple[str | int, ...] | None:
    """Where an Isolation names a node, or exactly these chips."""
    if not one.chips:
        nodes = list(spec.get("nodes") or ())
        return ("spec", "nodes", nodes.index(one.node)) if one.node in nodes else None
    for index, row in enumerate(spec.get("chips") or ()):
        if row.get("node") != one.node:
            continue
        named = set(parse_chips(row.get("chips")))
        if named == set(one.chips):
            return ("spec", "chips", index)
        if named & set(one.chips):
            raise InputError(f"an Isolation names it together with others (chips {row.get('chips')})", where=str(one),
                             hint=f"Release {one.node}/{row.get('chips')} and isolate the rest again")  # fmt: skip
    return None


def _isolation(name: str, targets: Sequence[NodeOrChips], reason: str, until: float | None) -> str:
    nodes = [one.node for one in targets if not one.chips]
    lines = ["apiVersion: belay.dev/v1alpha1", "kind: Isolation", "metadata:", f"  name: {name}", "spec:"]
    if nodes:
        lines.append(f"  nodes: [{', '.join(nodes)}]")
    chips = [one for one in targets if one.chips]
    if chips:
        lines.append("  chips:")
        for one in chips:
            lines += [f"    - node: {one.node}", f'      chips: "{",".join(map(str, one.chips))}"']
    lines.append(f"  reason: {splices.written(reason)}")
    if until is not None:
        lines.append(f"  until: {rfc3339(until)}")
    return "\n".join(lines) + "\n"


def text_of(data: bytes, file: str) -> str:
    """The text of a file. Raises InputError where it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError("this file is not UTF-8", where=file, hint="Save it as UTF-8") from error


def _namespace(metadata: Mapping[str, Any]) -> str:
    return str(metadata.get("namespace") or "default")


def _value(body: Any, path: Sequence[str | int], default: Any) -> Any:
    """The value at a path, or the default where the path ends early."""
    for part in path:
        inside = isinstance(body, Mapping) and part in body
        listed = isinstance(body, list) and isinstance(part, int) and part < len(body)
        if not inside and not listed:
            return default
        body = body[part]
    return default if body is None else body
