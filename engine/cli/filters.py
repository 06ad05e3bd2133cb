"""``--filter`` of `belay get` and `belay top`: conditions on the columns of an answer.

``state=isolated``, ``state!=healthy``, ``node=rack1-*``, ``codes=80C98001,80CB8009`` (one of them), ``chips>4``,
``since<10m`` (no older than ten minutes). All given conditions must hold.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from belay.engine.cli.ages import moment_of
from belay.engine.errors import InputError
from belay.engine.model.durations import parse_duration

_CONDITION: Final = re.compile(r"\s*([A-Za-z][A-Za-z0-9 _-]{0,40}?)\s*(!=|>=|<=|==|=|>|<)(.*)", re.DOTALL)
_LONGEST: Final = 1000
_OPTION: Final = "--filter"
Row = Mapping[str, Any]
_ORDERS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
}


def conditions(texts: Iterable[str], columns: Sequence[str], now: float) -> Callable[[Row], bool]:
    """Whether a row fulfils every condition; ``now`` is what ages are counted from (Unix seconds).

    Raises:
        InputError: a text is not a condition, or names no column of the answer.
    """
    checks = [_condition(text, columns, now) for text in texts]
    return lambda row: all(check(row) for check in checks)


def column_of(name: str, columns: Sequence[str], option: str) -> str:
    """The column that a user names: without regard to case, spaces, hyphens and underscores.

    Raises:
        InputError: there is none, or several.
    """
    wanted = _key(name)
    exact = [column for column in columns if _key(column) == wanted]
    if exact:
        return exact[0]
    near = [column for column in columns if wanted and _key(column).startswith(wanted)]
    if len(near) == 1:
        return near[0]
    raise InputError(f"there is no column {name!r}", where=option, hint=f"The columns are {', '.join(columns)}.")


def _condition(text: str, columns: Sequence[str], now: float) -> Callable[[Row], bool]:
    found = _CONDITION.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        raise InputError(
            f"{text[:80]!r} is not a condition", where=_OPTION, hint="Write COLUMN=VALUE, such as state=isolated."
        )
    column, sign, value = column_of(found[1], columns, _OPTION), found[2], found[3].strip()
    if sign in _ORDERS:
        return _comparison(column, sign, value, now)
    patterns = [pattern.strip().casefold() for pattern in value.split(",")]

    def holds(row: Row) -> bool:
        texts = _texts(row.get(column))
        return any(fnmatch.fnmatchcase(one, pattern) for one in texts for pattern in patterns) == (sign != "!=")

    return holds


def _comparison(column: str, sign: str, value: str, now: float) -> Callable[[Row], bool]:
    order = _ORDERS[sign]
    number, seconds = _number(value), _seconds(value)
    if number is None and seconds is None:
        raise InputError(
            f"{value[:80]!r} is neither a number nor a duration",
            where=_OPTION,
            hint=f"Write {column}{sign}4 or {column}{sign}10m.",
        )

    def holds(row: Row) -> bool:
        held = row.get(column)
        moment = moment_of(held) if isinstance(held, str) else None
        if moment is not None:
            return seconds is not None and order(abs(now - moment), seconds)
        own = _number(held)
        return own is not None and number is not None and order(own, number)

    return holds


def _number(value: object) -> float | None:
    """A number; of ``3/4`` the first part."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, list | tuple):
        return float(len(value))
    text = str(value).partition("/")[0].removesuffix("%").strip()
    try:
        found = float(text)
    except ValueError:
        return None
    return found if found == found else None


def _seconds(value: str) -> float | None:
    for text in (value, _days(value)):
        try:
            return parse_duration(text)
        except ValueError:
            continue
    return None


def _days(value: str) -> str:
    found = re.fullmatch(r"(\d{1,5})d", value)
    return f"{int(found[1]) * 24}h" if found else value


def _texts(value: object) -> list[str]:
    """What a condition compares with: each element of a list, and the whole as it is shown."""
    if value is None or value in ("", []):
        return ["", "-"]
    if isinstance(value, bool):
        return [str(value).casefold()]
    if isinstance(value, list | tuple):
        return [str(item).casefold() for item in value]
    return [str(value).casefold()]


def _key(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).casefold()
