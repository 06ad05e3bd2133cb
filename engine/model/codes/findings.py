"""Codes of findings in documents, which `belay validate` prints behind each."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from belay.engine.model.codes.rows import ExplainedCode as Row


class FindingCode(StrEnum):
    """What is wrong with a document, as a word that stays."""

    SYNTAX = "BadSyntax"
    UNKNOWN_FIELD = "UnknownField"
    MISSING_FIELD = "MissingField"
    WRONG_TYPE = "WrongType"
    INVALID_VALUE = "InvalidValue"
    DOUBTFUL_VALUE = "DoubtfulValue"
    UNKNOWN_NAME = "UnknownName"
    DECLARED_TWICE = "DeclaredTwice"
    NOT_IN_FORCE = "NotInForce"
    UNPLACEABLE_POD = "UnplaceablePod"
    COVERS_NOTHING = "CoversNothing"
    TEST_FAILED = "PolicyTestFailed"
    REPOSITORY_REFUSED = "RepositoryRefused"
    MORE_FINDINGS = "MoreFindings"
    MISPLACED = "MisplacedDocument"
    OLDER_VERSION = "OlderVersionInForce"


FINDINGS: Final[Mapping[str, Row]] = {
    FindingCode.SYNTAX: Row(
        "The file is no YAML 1.2, or a part of it cannot be read.",
        "Indentation, a tab, a missing quote, a key that is written twice, a tag or an alias that is not taken.",
        "Correct the line and column that are named. Until then the file's last good version counts.",
    ),
    FindingCode.UNKNOWN_FIELD: Row(
        "The kind has no such field.",
        "A misspelling, a field of another version, or one that stands a level too high or low.",
        "Write the field that the message names; belay schema KIND lists all.",
        "reference/README.md",
    ),
    FindingCode.MISSING_FIELD: Row("A required field is missing.", "", "Add it.", "reference/README.md"),
    FindingCode.WRONG_TYPE: Row(
        "A field holds a value of another type.",
        "Text that looks like a number without quotes, a list where one value is wanted.",
        "Write what the message asks for.",
        "reference/README.md",
    ),
    FindingCode.INVALID_VALUE: Row(
        "A value has the right type and still cannot be used.",
        "It is out of range, not one of those allowed, or contradicts another field.",
        "Write what the message asks for.",
        "reference/README.md",
    ),
    FindingCode.DOUBTFUL_VALUE: Row(
        "The document can be used, but probably does not say what was meant.",
        "A label without effect, a value that another rule overrides.",
        "Read what it does as written; correct it, or leave it where it is meant.",
    ),
    FindingCode.UNKNOWN_NAME: Row(
        "The document names what does not exist.",
        "A misspelling; a product, pool, queue, template or fault code that was renamed or removed.",
        "Write one of the names that the message lists, or declare it.",
    ),
    FindingCode.DECLARED_TWICE: Row(
        "Two documents declare the same object.",
        "A copied file, or the same document in two layers.",
        "Remove one; the message says which one counts until then.",
    ),
    FindingCode.NOT_IN_FORCE: Row(
        "The document is read and has no effect.", "Another one of its kind counts.", "Merge it into that one."
    ),
    FindingCode.UNPLACEABLE_POD: Row(
        "Pods of the document cannot run as they are written.",
        "They ask for more chips than a server has, for a part that no template has, or for two kinds of chips.",
        "Change the request as the message says.",
        "workloads.md",
    ),
    FindingCode.COVERS_NOTHING: Row(
        "A selector, an Isolation or a policy covers no node or chip of the cluster.",
        "A misspelling, a node that is gone, or an end that has gone by.",
        "Correct it, or remove the document.",
    ),
    FindingCode.TEST_FAILED: Row(
        "A test that a FaultPolicy carries failed.",
        "A rule was changed and its test was not, or the reverse.",
        "belay policy test plays it step by step; correct the rule or the expectation.",
    ),
    FindingCode.REPOSITORY_REFUSED: Row(
        "The revision as a whole is not taken.", "It has more documents or bytes than are read.", "Split it.",
    ),
    FindingCode.MISPLACED: Row(
        "The document lies in a folder from which no document of its kind is read.", "", "Move it as the message says.",
    ),
    FindingCode.OLDER_VERSION: Row(
        "A document cannot be used, so its last good version stays in force.", "", "Correct the error.",
    ),
    FindingCode.MORE_FINDINGS: Row("There are more findings than are shown.", "", "Mend those that are shown first."),
}  # fmt: skip
