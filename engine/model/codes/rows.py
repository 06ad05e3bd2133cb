"""What is said about a code: one shape for the codes of errors, findings, conditions, Events and waiting jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class ExplainedCode(NamedTuple):
    """A code in words: what it means, what usually leads to it, what to do, and the page below docs/ that says more."""

    meaning: str
    causes: str = ""
    way_out: str = ""
    page: str = ""


class CodeGroup(NamedTuple):
    """Codes that are met at one place. ``seen`` says where people see them."""

    title: str
    seen: str
    rows: Mapping[str, ExplainedCode]
