"""Every case of ``make soak`` (ROUND_TRIPS): the texts of the YAML Test Suite, then the files of state repositories."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

from belay.engine.cli.acts import splices
from belay.engine.load.yaml12 import YAMLProblem
from tests.round_trips.places import check_every_place, read
from tests.round_trips.shapes import Shape, check_shape, every_shape

SUITE = Path(__file__).with_name("yaml_test_suite.jsonl")


class Case(NamedTuple):
    """A text of the YAML Test Suite; ``invalid``: the suite says that it is no YAML."""

    name: str
    text: str
    invalid: bool


@cache
def suite() -> tuple[Case, ...]:
    """The texts of the YAML Test Suite, by their names there."""
    rows = map(json.loads, SUITE.read_text("utf-8").splitlines())
    return tuple(Case(row["id"], row["text"], row.get("invalid", False)) for row in rows)


@cache
def editable() -> tuple[Case, ...]:
    """Those in which the engine and the tests' own reader find the same documents, one at least.

    Left out are what the engine refuses (keys that are lists, own tags), and documents that say nothing: the engine
    leaves them out, where they stand between others, too.
    """
    return tuple(case for case in suite() if _is_read_alike(case.text))


def _is_read_alike(text: str) -> bool:
    try:
        return len(splices.bodies(text)) == len(read(text)) > 0
    except (YAMLProblem, yaml.YAMLError):
        return False


@cache
def shapes() -> tuple[Shape, ...]:
    """The files of state repositories."""
    return tuple(every_shape())


def count() -> int:
    """How many cases there are."""
    return len(editable()) + len(shapes())


def case(seed: int) -> None:
    """One case; raises AssertionError where an edit breaks a promise."""
    number = seed % count()
    if number < len(editable()):
        check_every_place(editable()[number].text)
    else:
        check_shape(shapes()[number - len(editable())])
