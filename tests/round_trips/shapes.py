"""Files of state repositories: a document that acts change, others before and after it, and habits of editors.

Every act that the document admits is made. What is beside the document stays byte for byte, so do the lines that the
act has not to touch, and an independent reader sees the old values and the change. Acts that undo each other leave the
file as it was.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from belay.engine.cli.acts import fault_policies, isolations, jobs
from belay.engine.cli.acts.edits import RepositoryEdit
from belay.engine.cli.acts.targets import target
from belay.engine.errors import InputError
from tests.round_trips.layouts import BESIDE, OWN
from tests.round_trips.places import read

FILE: Final = "desired/all.yaml"
_SEPARATORS: Final = ("---\n", "\n---\n\n", "--- # Source: chart/templates/x.yaml\n", "---\t\n")
_HABITS: Final[dict[str, Callable[[str], str]]] = {
    "as it is": lambda text: text,
    "line ends of Windows": lambda text: text.replace("\n", "\r\n"),
    "no last line end": lambda text: text.removesuffix("\n"),
    "byte order mark": lambda text: "\ufeff" + text,
    "a mark and Windows": lambda text: "\ufeff" + text.replace("\n", "\r\n"),
    "begins with a marker": lambda text: "---\n" + text,
    "a schema above": lambda text: f"# yaml-language-server: $schema=x.json\n---\n{text}",
    "ends with dots": lambda text: text + "...\n",
    "blank lines at the end": lambda text: text + "\n\n",
    "comment at the end": lambda text: text + "# vim: set ts=2:\n",
    "version directive": lambda text: "%YAML 1.2\n---\n" + text,
    "Windows below": lambda text: text + "---\r\nkind: Other\r\nmetadata: {name: last}\r\n",
}
_CHANGES_SHAPE: Final = ("line ends of Windows", "a mark and Windows")

Change = Callable[[Any], None]


@dataclass(frozen=True)
class Shape:
    """One file: the names of its parts, and the texts before, of and after the document that acts change."""

    name: str
    head: str
    own: str
    tail: str

    @property
    def text(self) -> str:
        return self.head + self.own + self.tail


def every_shape() -> Iterator[Shape]:
    """Each document with each that may stand beside it, before or after; habits and separators take turns."""
    turns = itertools.cycle(itertools.product(_HABITS, _SEPARATORS))
    for (own, text), (beside, other), before in itertools.product(OWN.items(), BESIDE.items(), (True, False)):
        habit, separator = next(turns)
        if not other and not before:
            continue
        yield _shape(f"{own}, {'after' if before else 'before'} {beside}, {habit}, {separator!r}", text, other,
                     before, habit, separator)  # fmt: skip


def _shape(name: str, own: str, other: str, before: bool, habit: str, separator: str) -> Shape:
    head = f"{other}{separator}" if other and before else ""
    tail = f"{separator}{other}" if other and not before else ""
    if habit in _CHANGES_SHAPE:
        head, own, tail = (part.replace("\n", "\r\n") for part in (head, own, tail))
        return Shape(name, ("\ufeff" if habit == "a mark and Windows" else "") + head, own, tail)

    whole = _HABITS[habit](head + own + tail)
    begin = whole.index(head + own.removesuffix("\n")) + len(head)
    end = begin + len(own)
    return Shape(name, whole[:begin], whole[begin:end], whole[end:])


@dataclass(frozen=True)
class Act:
    """An act on document x: how it is made, what it changes in values, and by how many lines at most."""

    name: str
    make: Callable[[Mapping[str, bytes]], RepositoryEdit]
    change: Change
    gone: int
    come: int
    back: Callable[[Mapping[str, bytes]], RepositoryEdit] | None = None
    adds: bool = False


def acts_of(body: Any) -> Iterator[Act]:
    """The acts that a document admits, as its own text gives them; a refusal is for the text, not the kind."""
    kind, spec = body["kind"], body["spec"]
    volcano = body["apiVersion"].startswith("batch.volcano.sh")
    if kind in jobs.JOB_KINDS:
        yield from _scalings(kind, spec, volcano)
        yield from _priorities(kind, spec, volcano)
    if kind in ("AscendJob", "NodePool", "Job") and not volcano:
        holder = ("runPolicy",) if kind == "AscendJob" else ()
        yield Act("suspend", lambda files: jobs.suspend(files, "x", True), _set((*holder, "suspend"), "true"), 1, 2)
    if kind == "FaultPolicy":
        yield from _policy_acts(spec)
    if kind == "Isolation":
        yield from _releases(spec)


def _scalings(kind: str, spec: Any, volcano: bool) -> Iterator[Act]:
    if kind == "LeaderWorkerSet" or not volcano:
        path: tuple[str | int, ...] = {
            "AscendJob": ("replicaSpecs", "Worker", "replicas"), "Job": ("parallelism",)
        }.get(kind, ("replicas",))  # fmt: skip
    else:
        path = ("tasks", 0, "replicas")
    old = _at(spec, path)

    def change(body: Any) -> None:
        _set(path, "7")(body)
        minimum = ("runPolicy", "schedulingPolicy", "minAvailable")
        pods = sum(int(_at(one, ("replicas",)) or 1) for one in (spec.get("replicaSpecs") or {}).values())
        if kind == "AscendJob" and _at(spec, minimum) == str(pods):
            _set(minimum, str(pods - int(old or 1) + 7))(body)

    back = (lambda files: jobs.scale(files, "x", int(old))) if old else None
    yield Act("scale", lambda files: jobs.scale(files, "x", 7), change, 2, 2, back)


def _priorities(kind: str, spec: Any, volcano: bool) -> Iterator[Act]:
    if kind == "LeaderWorkerSet":
        return
    path: tuple[str | int, ...] = ("template", "spec", "priorityClassName")
    if volcano:
        path = ("priorityClassName",)
    elif kind == "AscendJob":
        path = ("runPolicy", "schedulingPolicy", "priorityClass")
    old = _at(spec, path)
    back = (lambda files: jobs.prioritise(files, "x", old)) if old else None
    yield Act("priority", lambda files: jobs.prioritise(files, "x", "high"), _set(path, "high"), 1, 3, back)


def _policy_acts(spec: Any) -> Iterator[Act]:
    change = fault_policies.change_policy
    yield Act("mode", lambda files: change(files, "x", mode="shadow"), _set(("mode",), "shadow"), 1, 1)
    yield Act("level", lambda files: change(files, "x", levels={"80E18005": "SeparateNPU"}),
              _set(("levels", "80E18005"), "SeparateNPU"), 0, 2)  # fmt: skip
    for code in spec.get("levels") or ():
        yield Act(f"level of {code}", lambda files, code=code: change(files, "x", levels={code: "SeparateNPU"}),
                  _set(("levels", code), "SeparateNPU"), 1, 1)  # type: ignore[misc]  # fmt: skip
        yield Act(f"drop {code}", lambda files, code=code: change(files, "x", dropped=(code,)),
                  _del(("levels", code)), 1, 0)  # type: ignore[misc]  # fmt: skip
    rule = {"codes": ["81078603"], "times": 2, "window": "5m", "level": "ManuallySeparateNPU", "releaseAfter": "1h"}

    def add(body: Any) -> None:
        body["spec"]["frequency"] = [*body["spec"].get("frequency", ()), {**rule, "times": "2"}]

    yield Act("one rule more", lambda files: change(files, "x", frequency=[rule]), add, 1, 2)


def _releases(spec: Any) -> Iterator[Act]:
    nodes, chips = spec.get("nodes") or [], spec.get("chips") or []
    named = [*nodes, *(f"{row['node']}/{row['chips']}" for row in chips)]
    for at, name in enumerate(named):

        def change(body: Any, at: int = at) -> None:
            if len(named) > 1:
                del body["spec"]["nodes" if nodes else "chips"][at]

        if len(named) > 1:
            yield Act(f"release {name}", lambda files, name=name: isolations.release(files, [target(name)], 0.0),
                      change, 2, 1)  # type: ignore[misc]  # fmt: skip
        else:
            yield Act(f"release {name}", lambda files, name=name: isolations.release(files, [target(name)], 0.0),
                      lambda body: body.clear(), 99, 0)  # type: ignore[misc]  # fmt: skip


def check_shape(shape: Shape) -> Counter[str]:
    """Make every act of a file; how many were made and refused. Raises AssertionError where one breaks a promise."""
    done: Counter[str] = Counter()
    found = read(shape.text)
    at = next(n for n, body in enumerate(found) if isinstance(body, dict) and (body.get("metadata") or {}) == {
        **(body.get("metadata") or {}), "name": "x"} and "spec" in body)  # fmt: skip
    for act in acts_of(found[at]):
        done["made" if _check_act(shape, at, act) else "refused"] += 1
    done["made"] += _check_isolation(shape)
    return done


def _check_act(shape: Shape, at: int, act: Act) -> bool:
    files = {FILE: shape.text.encode()}
    where = f"{act.name} of {shape.name}"
    try:
        edit = act.make(files)
    except InputError as error:
        place = error.where.removeprefix(f"{FILE}:").split(":")
        assert all(part.isdigit() for part in place), f"{where}: no line in the refusal: {error}"
        return False

    wanted = read(shape.text)
    act.change(wanted[at])
    data = edit.files[FILE]
    edited = data.decode() if data is not None else ""
    assert read(edited) == [body for body in wanted if body != {}], f"{where}: another meaning\n{edited!r}"

    if act.come:  # a document that goes takes its marker along
        assert edited.startswith(shape.head) and edited.endswith(shape.tail), f"{where}: others changed\n{edited!r}"
    gone, come = _lines(shape.text, edited)
    assert len(gone) <= act.gone and len(come) <= act.come, f"{where}: {gone} became {come}"
    kept = [line for line in gone if line.strip().startswith("#") and line not in shape.own.splitlines()]
    assert not kept, f"{where}: a comment went: {gone}"
    _assert_line_ends(shape, edited, where)
    if act.back is not None:
        again = act.back({FILE: edited.encode()}).files[FILE]
        assert again == files[FILE], f"{where}: undone it is\n{again!r}"
    return True


def _check_isolation(shape: Shape) -> bool:
    """One document more in this file, where a person would write it; taken back, the file is as it was."""
    path = "desired/isolations.yaml"
    files = {path: shape.text.encode()}
    try:
        edit = isolations.isolate(files, [target("node-9")], "fan, it's loud", None)
    except InputError as error:
        assert error.where.startswith(f"{path}:"), f"isolate in {shape.name}: no line in the refusal: {error}"
        return False

    edited = (edit.files[path] or b"").decode()
    assert edited.startswith(shape.text), f"isolate in {shape.name}: what stood there changed"
    assert read(edited)[:-1] == read(shape.text) and read(edited)[-1]["spec"]["reason"] == "fan, it's loud"
    _assert_line_ends(shape, edited, f"isolate in {shape.name}")
    back = isolations.release({path: edited.encode()}, [target("node-9")], 0.0).files[path]
    assert back is not None and back.decode().rstrip("\r\n") == shape.text.rstrip("\r\n"), f"isolate in {shape.name}"
    return True


def _assert_line_ends(shape: Shape, edited: str, where: str) -> None:
    if "\n" not in shape.text.replace("\r\n", ""):
        assert "\n" not in edited.replace("\r\n", ""), f"{where}: line ends of both kinds"


def _lines(before: str, after: str) -> tuple[list[str], list[str]]:
    old, new = ([line for line in text.removeprefix("\ufeff").splitlines() if line] for text in (before, after))
    gone, come = Counter(old), Counter(new)
    gone.subtract(new)
    come.subtract(old)
    return [line for line, count in gone.items() if count > 0], [line for line, count in come.items() if count > 0]


def _at(body: Any, path: tuple[str | int, ...]) -> Any:
    for part in path:
        if isinstance(body, dict):
            body = body.get(part)
        else:
            body = body[part] if isinstance(body, list) and isinstance(part, int) else None
    return body


def _set(path: tuple[str | int, ...], value: str) -> Change:
    def change(body: Any) -> None:
        holder = body["spec"]
        for part in path[:-1]:
            if isinstance(holder, dict) and not holder.get(part):
                holder[part] = {}
            holder = holder[part]
        holder[path[-1]] = value

    return change


def _del(path: tuple[str, ...]) -> Change:
    def change(body: Any) -> None:
        holder = body["spec"]
        for part in path[:-1]:
            holder = holder[part]
        del holder[path[-1]]

    return change
