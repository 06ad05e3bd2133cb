"""Kubernetes' label selectors and node selector terms, and rules made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from belay.engine.model.cluster import Node
from belay.engine.model.quantities import signed_number
from belay.engine.plan.place.handler import Refusal

Terms = tuple[dict[str, Any], ...]

_BITS_64: Final = 1 << 63
#: Characters of a label's value.
_LONGEST: Final = 63


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
    have, want = _integer(value), _integer(values[0] if len(values) == 1 else None)
    if have is None or want is None:
        return 0
    return (have > want) - (have < want)


def _integer(text: str | None) -> int | None:
    """A label's value as a number of 64 bits, which Kubernetes reads it as; None for any other text."""
    number = signed_number(text, _LONGEST) if text is not None else None
    return number if number is not None and -_BITS_64 <= number < _BITS_64 else None
