"""Isolations: nodes and chips taken out of service, and given back."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from belay.engine.cli.acts import splices
from belay.engine.cli.acts.edits import RepositoryEdit
from belay.engine.cli.acts.placed_documents import FileText, documents
from belay.engine.cli.acts.targets import NodeOrChips
from belay.engine.documents.scalars import parse_chips
from belay.engine.errors import InputError
from belay.engine.model.times import parse_rfc3339, rfc3339

_ISOLATIONS: Final = "desired/isolations"


@dataclass(frozen=True)
class Freed:
    """What a release took out of an Isolation, and the Isolation's own words."""

    target: NodeOrChips
    reason: str
    until: str


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
    text = FileText.of(files, file).edited(splices.with_document, body)
    what = ", ".join(map(str, targets))
    end = f" until {rfc3339(until)}" if until is not None else ""
    # a release takes a target out of every Isolation
    alone = not any(_isolated_by_another(files, one) for one in targets)
    undo = ("belay release " + " ".join(map(str, targets)),) if alone else ()
    return RepositoryEdit({file: text.data}, f"Isolate {what}{end}", undo)


def _isolated_by_another(files: Mapping[str, bytes], one: NodeOrChips) -> bool:
    """Whether `belay release` of the target would touch an Isolation of these files, or be refused because of it."""
    for found in documents(files, "Isolation"):
        try:
            if _part_of(found.spec, one) is not None:
                return True
        except InputError:
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


def _release_one(files: dict[str, bytes | None], one: NodeOrChips) -> list[Freed]:
    """Edits ``files``; what the Isolations that named the target say."""
    freed: list[Freed] = []
    present = {path: data for path, data in files.items() if data is not None}
    for found in reversed(list(documents(present, "Isolation"))):
        spec = found.spec
        path = _part_of(spec, one)
        if path is None:
            continue
        freed.append(Freed(one, str(spec.get("reason", "")), str(spec.get("until") or "")))
        text = FileText.of(files, found.file)
        parts = len(spec.get("nodes") or ()) + len(spec.get("chips") or ())
        if parts > 1:
            siblings = spec.get(str(path[1])) or ()
            edited = text.edited(splices.without, found.number, path if len(siblings) > 1 else path[:2])
        else:
            edited = text.edited(splices.without_document, found.number)
        empty = not splices.bodies(edited.text)
        files[found.file] = None if empty and "#" not in edited.text else edited.data
    if not freed:
        raise InputError("no Isolation of this repository names it", where=str(one),
                         hint="belay explain says what holds it")  # fmt: skip
    return freed


def _part_of(spec: Mapping[str, Any], one: NodeOrChips) -> tuple[str | int, ...] | None:
    """Where an Isolation names a node, or exactly these chips."""
    if not one.chips:
        nodes = spec.get("nodes")
        if not isinstance(nodes, list) or one.node not in nodes:
            return None
        return ("spec", "nodes", nodes.index(one.node))

    rows = spec.get("chips")
    for index, row in enumerate(rows if isinstance(rows, list) else ()):
        if not isinstance(row, Mapping) or row.get("node") != one.node:
            continue
        named = _chips(row, one)
        if named == set(one.chips):
            return ("spec", "chips", index)
        if named & set(one.chips):
            raise InputError(f"an Isolation names it together with others (chips {row.get('chips')})", where=str(one),
                             hint=f"Release {one.node}/{row.get('chips')} and isolate the rest again")  # fmt: skip
    return None


def _chips(row: Mapping[str, Any], one: NodeOrChips) -> set[int]:
    """The chips of a row of an Isolation. Raises InputError where it names none."""
    try:
        return set(parse_chips(row.get("chips")))
    except ValueError as error:
        raise InputError(f"an Isolation of this node cannot be read: {error}", where=str(one),
                         hint="Mend that Isolation first (belay validate)") from error  # fmt: skip


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
