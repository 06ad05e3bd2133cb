"""Places of fields in documents, for problems found long after the documents were read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import yaml

from belay.engine.documents.problems import Path
from belay.engine.load import yaml12
from belay.engine.model.diagnostics import Origin


def location_of(files: Mapping[str, bytes], origin: Origin, path: Path) -> tuple[int, int, str]:
    """Line, column and field of ``path`` in the document that begins at ``origin``.

    The place of the document itself if its file is not among ``files`` or has changed.
    """
    data = files.get(origin.file)
    if data is not None:
        try:
            for root, prefix in _documents(data, origin.file):
                line, column, _ = yaml12.locate(root, prefix)
                if (line, column) == (origin.line, origin.column):
                    return yaml12.locate(root, (*prefix, *path))
        except yaml12.YAMLProblem:
            return origin.line, origin.column, ""
    return origin.line, origin.column, ""


def _documents(data: bytes, name: str) -> Iterator[tuple[yaml.Node, Path]]:
    """Every place where a document may begin: the documents of the file, and the items of Lists."""
    for root in yaml12.compose(yaml12.json_text(data) if name.endswith(".json") else data):
        yield root, ()
        if isinstance(root, yaml.MappingNode):
            for key, value in root.value:
                if key.value == "items" and isinstance(value, yaml.SequenceNode):
                    for index in range(len(value.value)):
                        yield root, ("items", index)
