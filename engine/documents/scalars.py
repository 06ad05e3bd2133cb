"""Scalar values in documents: durations, limits, names, chip lists, fault codes.

Each is parsed once into a plain Python value (float seconds, tuple of int) and written back in the form that people
use, so that a document survives a round trip.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictBool,
    StrictInt,
    StringConstraints,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel

from belay.engine.model.durations import DURATION_PATTERN
from belay.engine.model.durations import format_duration as format_duration
from belay.engine.model.durations import parse_duration as parse_duration
from belay.engine.model.times import parse_rfc3339, rfc3339

MAX_CHIPS: Final = 64
"""Most chips a node can have (docs: 64 cards per node)."""

_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
NAME_PATTERN: Final = rf"^{_LABEL}(\.{_LABEL})*$"
LABEL_PATTERN: Final = rf"^{_LABEL}$"
_PERCENT: Final = re.compile(r"^([0-9]{1,3}(?:\.[0-9]+)?)%$")
_CHIP: Final = re.compile(r"^(?:[A-Za-z][A-Za-z0-9]*-)?([0-9]{1,3})$")
_CHIP_RANGE: Final = re.compile(r"^([0-9]{1,3})-([0-9]{1,3})$")


class Document(BaseModel):
    """Base class of documents: immutable, camelCase in files, unknown fields refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=False,
        defer_build=True,  # a process needs few of the kinds, and what is compiled of one takes up to a MiB
    )


class Limit(BaseModel):
    """A limit: a count, a percentage, or the greater of both.

    Written ``3``, ``"10%"`` or ``[10, "20%"]``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    count: int | None = None
    percent: float | None = None

    def of(self, total: int | None) -> int:
        """The limit as a number.

        A percentage is rounded down, but is at least 1 unless it is 0 %.

        Args:
            total: to which a percentage refers; ``None`` when there is none, so that only the count applies.
        """
        parts = [self.count] if self.count is not None else []
        if self.percent is not None and total is not None:
            parts.append(max(1, int(total * self.percent / 100 + 1e-9)) if self.percent else 0)
        return max(parts, default=0)


def parse_limit(value: object) -> object:
    """Turn ``3``, ``"10%"`` or ``[3, "10%"]`` into the fields of a :class:`Limit`.

    Raises:
        ValueError: neither a count, a percentage nor a list of one of each.
    """
    if isinstance(value, (Limit, dict)):
        return value
    items: list[object] = list(value) if isinstance(value, (list, tuple)) else [value]
    fields: dict[str, float] = {}
    for item in items:
        key, number = _limit_part(item)
        if key in fields:
            raise ValueError('a list holds one count and one percentage, the greater counts, such as [10, "20%"]')
        fields[key] = number
    if not fields:
        raise ValueError("an empty list limits nothing: write a count, a percentage or both")
    return fields


def _limit_part(item: object) -> tuple[str, float]:
    if isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= 1_000_000_000:
        return "count", item
    match = _PERCENT.match(item) if isinstance(item, str) else None
    if match and float(match[1]) <= 100:
        return "percent", float(match[1])
    raise ValueError(f'{_shown(item)} is not a limit: write a count such as 3 or a percentage from "0%" to "100%"')


def _limit_text(limit: Limit) -> object:
    parts: list[object] = [] if limit.count is None else [limit.count]
    if limit.percent is not None:
        parts.append(f"{limit.percent:g}%")
    return parts[0] if len(parts) == 1 else parts


def parse_until(value: object) -> float:
    """Unix seconds of an RFC 3339 time.

    Raises:
        ValueError: not a time, or one without a zone.
    """
    if not isinstance(value, str) or len(value) > 40:
        raise ValueError(f"{_shown(value)} is not a time: write it as 2026-09-01T08:00:00Z")
    try:
        return parse_rfc3339(value)
    except ValueError as problem:
        raise ValueError(f"{_shown(value)} is not a time with a zone: write it as 2026-09-01T08:00:00Z") from problem


def parse_chips(value: object) -> tuple[int, ...]:
    """Chip ids of ``"0-3"``, ``"0,2,4-7"``, ``[0, 1]`` or ``[Ascend910-0, Ascend910-1]``, ascending.

    Raises:
        ValueError: another form, an id beyond 63, or a chip named twice.
    """
    if isinstance(value, str):
        items: list[object] = [part.strip() for part in value.split(",")]
    elif isinstance(value, (list, tuple)):
        items = list(value)
    else:
        items = [value]
    chips: list[int] = []
    for item in items[: 4 * MAX_CHIPS]:
        chips.extend(_chip_ids(item))
    if not chips:
        raise ValueError("no chip is named")
    if max(chips) >= MAX_CHIPS:
        raise ValueError(f"chip {max(chips)} does not exist: a node has chips 0 to {MAX_CHIPS - 1}")
    twice = sorted({chip for chip in chips if chips.count(chip) > 1})
    if twice:
        raise ValueError(f"chip {twice[0]} is named twice")
    return tuple(sorted(chips))


def parse_sizes(value: object) -> tuple[int, ...]:
    """Request sizes of ``[1, 2, 4]``, ``1-8`` or ``1-8,10,12``, ascending, each at most 1,000.

    Raises:
        ValueError: another form, or a size out of range.
    """
    items: list[object] = [part.strip() for part in value.split(",")] if isinstance(value, str) else [value]
    if isinstance(value, (list, tuple)):
        items = list(value)
    sizes: set[int] = set()
    for item in items:
        first, _, last = str(item).partition("-")
        if isinstance(item, bool) or not re.match(r"^[0-9]{1,4}(-[0-9]{1,4})?$", str(item)):
            raise ValueError(f"{_shown(item)} names no sizes: write [1, 2, 4] or 1-8,10")
        sizes.update(range(int(first), int(last or first) + 1))
    if sizes and not 1 <= min(sizes) <= max(sizes) <= 1_000:
        raise ValueError("sizes are between 1 and 1000")
    return tuple(sorted(sizes))


def _chip_ids(item: object) -> list[int]:
    if isinstance(item, int) and not isinstance(item, bool) and item >= 0:
        return [item]
    if isinstance(item, str):
        if one := _CHIP.match(item):
            return [int(one[1])]
        if (span := _CHIP_RANGE.match(item)) and int(span[1]) <= int(span[2]):
            return list(range(int(span[1]), int(span[2]) + 1))
    raise ValueError(f'{_shown(item)} names no chips: write "0-3", [0, 1] or [Ascend910-0]')


def parse_code(value: object) -> str:
    """A fault code as text; codes compare without regard to case.

    Raises:
        ValueError: a number: YAML has already lost its leading zeros or read ``80E01801`` as a power of ten.
    """
    if isinstance(value, str) and re.match(r"^[0-9A-Za-z_\[\],.-]{1,64}$", value):
        return value
    hint = ": put it in quotes, as YAML reads it as a number otherwise" if isinstance(value, (int, float)) else ""
    raise ValueError(f"{_shown(value)} is not a fault code{hint}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_DURATION_SCHEMA: Final[dict[str, Any]] = {
    "type": "string", "pattern": DURATION_PATTERN, "description": "Go-style duration", "examples": ["90s", "6h"],
}  # fmt: skip
_LIMIT_ITEM: Final[dict[str, Any]] = {
    "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": _PERCENT.pattern}]
}
_LIMIT_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [*_LIMIT_ITEM["anyOf"], {"type": "array", "items": _LIMIT_ITEM, "minItems": 1, "maxItems": 2}],
    "description": "a count, a percentage, or a list of one of each: the greater counts",
}
_CHIPS_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "string"}, {"type": "integer", "minimum": 0},
        {"type": "array", "items": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}, "minItems": 1},
    ],
    "description": "chips as \"0-3\", \"0,2,4-7\", [0, 1] or [Ascend910-0]",
}  # fmt: skip

Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=253)]
"""RFC 1123 subdomain."""
LabelName = Annotated[str, StringConstraints(pattern=LABEL_PATTERN, max_length=63)]
"""RFC 1123 label."""
Text = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
Count = Annotated[StrictInt, Field(ge=0, le=1_000_000_000)]
Positive = Annotated[StrictInt, Field(ge=1, le=1_000_000_000)]
Flag = StrictBool
Duration = Annotated[
    float, BeforeValidator(parse_duration), PlainSerializer(format_duration), WithJsonSchema(_DURATION_SCHEMA)
]
"""Seconds, written ``90s``."""
LimitValue = Annotated[Limit, BeforeValidator(parse_limit), PlainSerializer(_limit_text), WithJsonSchema(_LIMIT_SCHEMA)]
Until = Annotated[
    float, BeforeValidator(parse_until), PlainSerializer(rfc3339),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]  # fmt: skip
"""Unix seconds, written in RFC 3339."""
Chips = Annotated[tuple[int, ...], BeforeValidator(parse_chips), WithJsonSchema(_CHIPS_SCHEMA)]
Sizes = Annotated[
    tuple[int, ...], BeforeValidator(parse_sizes),
    WithJsonSchema({"anyOf": [
        {"type": "string", "pattern": "^[0-9]+(-[0-9]+)?( *, *[0-9]+(-[0-9]+)?)*$"},
        {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 1000}},
    ]}),
]  # fmt: skip
"""Request sizes, written ``[1, 2, 4]`` or ``1-8,10``."""
Code = Annotated[
    str, BeforeValidator(parse_code),
    WithJsonSchema({"type": "string", "maxLength": 64, "pattern": r"^[0-9A-Za-z_\[\],.-]+$"}),
]  # fmt: skip
