"""How many pods an object says that it has, by the row of its kind; malformed fields read as absent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from belay.engine.model.cluster import Pod
from belay.engine.model.labels import HUAWEI_PREFIX
from belay.engine.model.quantities import whole_number
from belay.engine.model.workload_kinds import EACH, Condition, Factor, WorkloadRole, WorkloadRow

#: More pods than any workload has; a larger product is a mistake of its author.
_MOST: Final = 1_000_000


class DeclaredSize(NamedTuple):
    """What an object declares: pods that ask for chips, all pods, and how many start together (0: it does not say).

    ``counts_all``: these numbers count pods without chips, too.
    """

    with_chips: int
    pods: int
    minimum: int = 0
    counts_all: bool = False


def declared_size(row: WorkloadRow, raw: Mapping[str, Any]) -> DeclaredSize | None:
    """The size of a workload by its object; None where the row or the object does not say it."""
    if not raw or not (row.roles or row.minimum):
        return None

    with_chips = everyone = role_minimum = 0
    for role in row.roles:
        for one in roles_at(raw, role):
            pods = product(one, role.factors)
            everyone += pods
            if _asks_for_chips(one, role):
                with_chips += pods
                role_minimum += _role_minimum(one, role, raw, pods)

    stated = next(filter(None, (number_at(raw, path) for path in row.minimum)), 0)
    least = role_minimum if role_minimum < with_chips else 0
    counts_all = bool(stated) or not any(role.template for role in row.roles)
    return DeclaredSize(with_chips, everyone, stated or least, counts_all)


def is_stepwise(row: WorkloadRow, raw: Mapping[str, Any]) -> bool:
    """Whether the pods of a workload are made one after the other."""
    return row.stepwise is not None and holds(row.stepwise, raw)


def says_size(row: WorkloadRow) -> bool:
    """Whether objects of a kind say how many pods they have."""
    return bool(row.roles or row.minimum or row.size or row.size_keys)


def size_of_group(row: WorkloadRow, raw: Mapping[str, Any], pods: Iterable[Pod]) -> int:
    """How many pods each group of a workload has: as a pod says, else as the object does; 0 where neither does."""
    for pod in pods:
        for key in row.size_keys:
            size = whole_number(label_or_annotation(pod, key), digits=6)
            if size is not None:
                return size
    return product(raw, row.size) if row.size and raw else 0


def group_of(row: WorkloadRow, pod: Pod) -> str:
    """The name of a pod's group within its workload; empty where its labels do not say it."""
    return next(filter(None, (label_or_annotation(pod, key) for key in row.group_labels)), "")


def label_or_annotation(pod: Pod, key: str) -> str:
    """The value of a label, else of an annotation; empty without both."""
    return pod.labels.get(key) or pod.annotations.get(key) or ""


def roles_at(raw: Mapping[str, Any], role: WorkloadRole) -> list[Mapping[str, Any]]:
    """The roles of an object that stand at a path, in which ``*`` stands for every element of a list or a map."""
    found: list[object] = [raw]
    for field in role.path:
        if field == EACH:
            found = [inner for one in found for inner in _elements(one)]
        else:
            found = [value_at(one, (field,)) for one in found]
    return [one for one in found if isinstance(one, dict)]


def _elements(value: object) -> Iterable[object]:
    if isinstance(value, list):
        return value
    return value.values() if isinstance(value, Mapping) else ()


def value_at(raw: object, path: Iterable[str]) -> Any:
    """The value at a path of fields, None where there is none."""
    value = raw
    for field in path:
        value = value.get(field) if isinstance(value, Mapping) else None
    return value


def number_at(raw: object, path: Iterable[str]) -> int:
    """The whole number of at least 0 at a path, 0 where there is none."""
    value = value_at(raw, path)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST else 0


def holds(condition: Condition, raw: object) -> bool:
    """Whether the field has one of the values, as people write them."""
    value = value_at(raw, condition.path)
    text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text in condition.values


def product(raw: object, factors: Iterable[Factor]) -> int:
    """The product of numbers; absent and malformed ones have their default."""
    result = 1
    for factor in factors:
        value = value_at(raw, factor.path)
        sound = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        result = min(_MOST, result * (value if sound else factor.default))
    return result


def _role_minimum(one: Mapping[str, Any], role: WorkloadRole, raw: Mapping[str, Any], pods: int) -> int:
    in_force = role.minimum_when is None or holds(role.minimum_when, raw)
    return min(pods, product(one, role.minimum)) if role.minimum and in_force else pods


def _asks_for_chips(one: Mapping[str, Any], role: WorkloadRole) -> bool:
    """Whether the pods of a role ask for chips; one whose template cannot be read is counted."""
    template = value_at(one, role.template)
    if not role.template or not isinstance(template, Mapping) or not isinstance(template.get("spec"), Mapping):
        return True
    spec = template["spec"]
    if spec.get("resourceClaims"):
        return True
    containers = [*_rows(spec.get("containers")), *_rows(spec.get("initContainers"))]
    return any(_container_asks(container) for container in containers)


def _container_asks(container: Mapping[str, Any]) -> bool:
    for part in ("requests", "limits"):
        amounts = value_at(container, ("resources", part))
        if isinstance(amounts, Mapping) and any(
            str(name).startswith(HUAWEI_PREFIX) and str(amount) not in ("0", "") for name, amount in amounts.items()
        ):
            return True
    return False


def _rows(value: object) -> list[Mapping[str, Any]]:
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []
