"""The ``Source`` document, which the controller is given instead of reading it from a repository."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import ValidationError

from belay.engine.documents import Source
from belay.engine.errors import InputError
from belay.engine.load import yaml12
from belay.engine.load.validation_errors import problems_of

_MAX_SHOWN: Final = 5


def read_source(path: Path) -> Source:
    """Read the Source document in a file.

    Raises:
        InputError: not readable, not exactly one document, or not a valid Source; the text names file:line:col.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(path)) from error
    try:
        nodes = yaml12.compose(data)
        if len(nodes) != 1:
            raise InputError(f"holds {len(nodes)} documents, expected one Source", where=str(path))
        body, faults = yaml12.build(nodes[0], yaml12.may_alias(data))
    except yaml12.YAMLProblem as fault:
        raise InputError(fault.message, where=f"{path}:{fault.line}:{fault.column}") from fault
    if faults:
        raise InputError(faults[0].message, where=f"{path}:{faults[0].line}:{faults[0].column}")
    try:
        return Source.model_validate(body)
    except ValidationError as failure:
        lines = []
        for problem in problems_of(failure, Source)[:_MAX_SHOWN]:
            line, column, field = yaml12.locate(nodes[0], problem.path, problem.at_key)
            lines.append(f"{path}:{line}:{column} {field} - {problem.message}")
        raise InputError("; ".join(lines)) from failure
