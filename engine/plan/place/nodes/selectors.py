"""Kubernetes' label selectors and node selector terms, and rules made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from belay.engine.model.cluster import Node
from belay.engine.plan.place.handler import Refusal

Terms = tuple[dict[str, Any], ...]


class NodeRule(NamedTuple):
    """A node must match one of the node selector ``terms``; without any, no node does. ``refusal`` says why not."""

    terms: Terms
    refusal: Refusal

    def allows(self, node: Node) -> bool:
        """Whether a node matches."""
        return any(matches(term, node) for term in self.terms)


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether a Kubernetes label selector matches; None matches nothing, an empty one everything."""
    if selector is None:
        return False
    exact = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in exact.items()):
        return False
    return all(_requirement(row, labels) for row in selector.get("matchExpressions") or ())


def matches(term: Mapping[str, Any], node: Node) -> bool:
    """A node selector term: all its expressions and fields; an empty term matches no node."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    return all(_requirement(row, node.labels) for row in expressions) and all(
        _requirement(row, {"metadata.name": node.name}) for row in fields
    )


def unmet(term: Mapping[str, Any], node: Node) -> list[dict[str, Any]]:
    """The expressions and fields of a node selector term that a node does not meet; those of fields carry ``field``."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    named = {"metadata.name": node.name}
    lacking = [dict(row) for row in expressions if not _requirement(row, node.labels)]
    return lacking + [{**row, "field": True} for row in fields if not _requirement(row, named)]


def _requirement(row: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value = labels.get(str(row.get("key")))
    values = [str(wanted) for wanted in row.get("values") or ()]
    match row.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return _compare(value, values) > 0
        case "Lt":
            return _compare(value, values) < 0
        case _:
            return False


def _compare(value: str | None, values: list[str]) -> int:
    """Sign of the label's number minus the wanted one; 0 where either is not an integer, so that nothing matches."""
    if value is None or len(values) != 1:
        return 0
    try:
        have, want = int(value), int(values[0])
    except ValueError:
        return 0
    return (have > want) - (have < want)
