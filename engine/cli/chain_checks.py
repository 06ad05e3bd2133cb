"""What checks of a chain from commit to chip have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

Maps = Mapping[tuple[str, str], Mapping[str, Any]]
"""ConfigMaps by namespace and name."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One link of a chain: the ``object``, what was checked (``check``), and the ``problem``, empty when it holds."""

    object: str
    check: str
    problem: str = ""
