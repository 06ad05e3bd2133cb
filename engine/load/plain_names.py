"""Names that Kubernetes' YAML reads as another type: ``name: on`` is true for kubectl, ``012`` the number ten.

Documents are YAML 1.2 here, where both are text; a name that means one object to Belay and none to kubectl is refused
with the hint to quote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import yaml

from belay.engine.documents.problems import Path, Problem

_WORDS: Final = frozenset({"on", "off", "yes", "no", "true", "false"})
_OCTAL: Final = re.compile(r"[-+]?0[0-9_]+\Z")
_FIELDS: Final = (("metadata", "name"), ("metadata", "namespace"))


def names_read_otherwise(node: yaml.Node, path: Path) -> Iterator[Problem]:
    """The unquoted names below a document's node that are no text to Kubernetes."""
    for field in _FIELDS:
        found: yaml.Node | None = node
        for key in (*path, *field):
            found = _child(found, key)
        if not isinstance(found, yaml.ScalarNode) or found.style:
            continue
        text = str(found.value)
        what = "a boolean" if text.lower() in _WORDS else "an octal number" if _OCTAL.match(text) else ""
        if what:
            yield Problem(field, f'Kubernetes reads {text} as {what}, not as a name: write "{text}" in quotes')


def _child(node: yaml.Node | None, key: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for name, value in node.value if getattr(name, "value", None) == key), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
        found: yaml.Node = node.value[key]
        return found
    return None
