"""``-l`` of the verbs that list: a label selector as kubectl writes it, and the objects whose labels choose rows.

Source: k8s.io/apimachinery/pkg/labels, "Parse".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from belay.engine.errors import InputError

if TYPE_CHECKING:
    from belay.engine.kube import Kube

Json = Mapping[str, Any]
_OPTION: Final = "-l"
_LONGEST: Final = 2000
_TOKEN: Final = re.compile(r"\s*(?:(==|!=|=|!|>|<|,|\(|\))|([^\s=!<>(),]+))")
_KEY: Final = re.compile(r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_VALUE: Final = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_HINT: Final = "As kubectl takes it: app=train, tier!=test, team in (a,b), team notin (a), gpu, !gpu; commas join them."
#: By kind of ``belay get``, the kinds of objects whose labels choose its rows, and the columns that name the object.
_OWNERS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "nodes": ("Node", ("node",)),
    "chips": ("Node", ("node",)),
    "faults": ("Node", ("node",)),
    "vnpus": ("Node", ("node",)),
    "jobs": ("", ("namespace", "kind", "name")),
    "recoveries": ("", ("namespace", "kind", "name")),
    "pools": ("NodePool", ("pool",)),
    "queues": ("Queue", ("queue",)),
    "links": ("KVLink", ("link",)),
}

#: Kinds of jobs that every cluster may have; others are declared (WorkloadKind).
_JOBS: Final = (
    "AscendJob", "Job", "Deployment", "StatefulSet", "ReplicaSet", "InferServiceSet", "InferService", "InstanceSet",
    "PodGroup", "Pod",
)  # fmt: skip
_DEFINITIONS: Final = ("CustomResourceDefinition", "WorkloadKind")


class _Requirement(NamedTuple):
    """One condition on labels: ``holds`` judges the value of ``key``, which is None where the label is missing."""

    key: str
    holds: Callable[[str | None], bool]


class LabelSelector:
    """A selector, read once. ``text`` is what the API server is given."""

    def __init__(self, text: str) -> None:
        """Raises InputError: it is no selector; with the place of the first wrong character."""
        self.text = text.strip()
        self._requirements = tuple(_Reader(text).requirements())

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether labels fulfil every requirement."""
        return all(one.holds(labels.get(one.key)) for one in self._requirements)

    def chooses(self, item: Json) -> bool:
        """Whether the labels of an object do."""
        labels = (item.get("metadata") or {}).get("labels") or {}
        return self.matches({str(key): str(value) for key, value in labels.items()})


class ChosenObjects(NamedTuple):
    """The names of the objects that a selector chooses, for the rows of one kind."""

    columns: tuple[str, ...]
    names: frozenset[tuple[str, ...]]

    def has(self, row: Mapping[str, Any]) -> bool:
        """Whether a row is about one of them."""
        return tuple(str(row.get(column) or "") for column in self.columns) in self.names


def check_kind(what: str) -> None:
    """Raises InputError: rows of this kind belong to no object with labels."""
    if what not in _OWNERS:
        hint = "--filter COLUMN=VALUE chooses them"
        raise InputError(f"{what} are not chosen by labels", where=_OPTION, hint=hint)


def chosen(what: str, items: Iterable[Json]) -> ChosenObjects:
    """The objects whose labels were found to match, for the rows of a kind."""
    columns = _OWNERS[what][1]
    return ChosenObjects(columns, frozenset(_name(item, columns) for item in items))


def _name(item: Json, columns: tuple[str, ...]) -> tuple[str, ...]:
    metadata = item.get("metadata") or {}
    if len(columns) == 1:
        return (str(metadata.get("name") or ""),)
    from belay.engine.gangs.forming import gang_key

    # a Job of Kubernetes is Job.batch in the rows, so that it is not taken for a Volcano Job of its name
    api_version, kind = str(item.get("apiVersion") or ""), str(item.get("kind") or "")
    key = gang_key(api_version, kind, str(metadata.get("namespace") or ""), str(metadata.get("name") or ""))
    return tuple(key.split("/", 2))


def chosen_once(what: str, selector: LabelSelector, inputs: Mapping[str, Any]) -> ChosenObjects:
    """The objects of the live cluster, or of a file, that a selector chooses.

    Raises:
        BelayError: the cluster does not answer, or the file cannot be used.
    """
    from functools import partial

    from belay.engine.cli.inputs import LIVE, cluster_items
    from belay.engine.observe.live import with_kube

    if inputs["cluster"] == LIVE:
        return with_kube(inputs["kubeconfig"], partial(chosen_live, what, selector), context=inputs["context"])
    items, _, _ = cluster_items(inputs["cluster"], None, None)
    kind = _OWNERS[what][0]
    return chosen(what, [item for item in items if kind in ("", item.get("kind")) and selector.chooses(item)])


async def chosen_live(what: str, selector: LabelSelector, kube: Kube) -> ChosenObjects:
    """The objects of the live cluster that a selector chooses; the API server chooses them."""
    from msgspec.structs import replace

    from belay.engine.observe.resources import WATCHED, fetch
    from belay.engine.observe.workload_watches import served_kinds

    kind = _OWNERS[what][0]
    kinds = (kind,) if kind else _JOBS
    watched = [one for one in WATCHED if one.resource.kind in kinds]
    if not kind:
        definitions = [one for one in WATCHED if one.resource.kind in _DEFINITIONS]
        watched += served_kinds(await fetch(kube, tuple(replace(one, may_be_closed=True) for one in definitions)))
    asked = [
        # of jobs, kinds that this person may not read are left out; the one kind of other rows is an error then
        replace(one, labels=selector.text, optional=True, may_be_closed=not kind)
        for one in watched
    ]
    return chosen(what, await fetch(kube, tuple(asked)))


class _Reader:
    """Reads a selector from left to right."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        if len(text) > _LONGEST:
            raise InputError(f"a selector has at most {_LONGEST} characters, not {len(text)}", where=_OPTION)

    def requirements(self) -> Iterable[_Requirement]:
        """All of them; an empty selector has none."""
        if not self._text.strip():
            return
        yield self._requirement()
        while self._next() == ",":
            self._take()
            yield self._requirement()
        if rest := self._next():
            raise self._wrong(f"{rest!r} stands where a comma or the end is expected")

    def _requirement(self) -> _Requirement:
        if self._next() == "!":
            self._take()
            return _Requirement(self._key(), lambda value: value is None)

        key = self._key()
        match self._next():
            case "=" | "==" | "!=" as sign:
                self._take()
                wanted = self._value()
                equal = sign != "!="
                return _Requirement(key, lambda value: (value == wanted) is equal)
            case ">" | "<" as sign:
                self._take()
                return _Requirement(key, _ordered(sign, self._number()))
            case "in" | "notin" as word:
                self._take()
                among, inside = self._values(), word == "in"
                return _Requirement(key, lambda value: (value in among) is inside)
        return _Requirement(key, lambda value: value is not None)

    def _key(self) -> str:
        found = self._next()
        if not _KEY.fullmatch(found):
            what = f"{found!r} stands where" if found else "it ends where"
            raise self._wrong(f"{what} the name of a label is expected")
        return self._take()

    def _value(self) -> str:
        found = self._next()
        if found in ("", ","):
            return ""
        if not _VALUE.fullmatch(found):
            raise self._wrong(f"{found!r} is no value of a label (letters, digits, '-', '_', '.', at most 63)")
        return self._take()

    def _number(self) -> int:
        found = self._next()
        if not re.fullmatch(r"-?[0-9]{1,18}", found):
            raise self._wrong(f"{found!r} stands where a whole number is expected" if found else "a number is missing")
        return int(self._take())

    def _values(self) -> frozenset[str]:
        self._expect("(")
        found = {self._value_of_set()}
        while self._next() == ",":
            self._take()
            found.add(self._value_of_set())
        self._expect(")")
        return frozenset(found)

    def _value_of_set(self) -> str:
        return "" if self._next() == ")" else self._value()

    def _expect(self, sign: str) -> None:
        found = self._next()
        if found != sign:
            what = f"{found!r} stands where" if found else "it ends where"
            raise self._wrong(f"{what} {sign!r} is expected")
        self._take()

    def _next(self) -> str:
        """The word or sign that comes next; empty at the end."""
        found = _TOKEN.match(self._text, self._at)
        return found[found.lastindex or 0] if found else ""

    def _take(self) -> str:
        found = _TOKEN.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        return found[found.lastindex or 0]

    def _wrong(self, problem: str) -> InputError:
        found = _TOKEN.match(self._text, self._at)
        column = (found.start(found.lastindex or 0) if found else len(self._text)) + 1
        return InputError(f"{problem}, in {self._text!r:.120}", where=f"{_OPTION}:{column}", hint=_HINT)


def _ordered(sign: str, bound: int) -> Callable[[str | None], bool]:
    def holds(value: str | None) -> bool:
        if value is None or not re.fullmatch(r"-?[0-9]{1,18}", value):
            return False
        return int(value) > bound if sign == ">" else int(value) < bound

    return holds
