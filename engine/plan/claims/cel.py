"""The part of the Common Expression Language in which DRA selectors are written, with a bound on every evaluation.

Grammar and functions: github.com/google/cel-spec (langdef) and kubernetes.io/docs/reference/using-api/cel, as far
as selectors of devices use them: literals, operators, ``? :``, ``in``, members, indexes, lists, ``has``,
``size``, ``exists``, ``all``, ``startsWith``, ``endsWith``, ``contains``, ``lowerAscii``, ``upperAscii``,
``int``, ``string``, ``quantity`` and ``semver`` with their comparisons, ``cel.bind``. Anything else is an error
that names it: a claim then waits, and is never served by a guess.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import isfinite
from typing import Any, Final, NamedTuple

from belay.engine.model import quantities
from belay.engine.model.quantities import whole_number

#: Longest expression of the API (resource.k8s.io/v1, CELSelectorExpressionMaxLength).
MAX_LENGTH: Final = 10 * 1024
#: Most steps of one evaluation; a list comprehension over 64 texts takes some hundred.
MAX_STEPS: Final = 10_000
#: Longest text that an operator makes: texts that are doubled again and again would fill the memory.
MAX_TEXT: Final = 4096
_MAX_DEPTH: Final = 60
_TOO_DEEP: Final = "the expression is a chain of too many parts"
#: Whole numbers of CEL: those of int and uint.
_NUMBERS: Final = (-(1 << 63), (1 << 64) - 1)
_MAX_DIGITS: Final = 40
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<number>\d+\.\d+|0x[0-9a-fA-F]+|\d+)u?
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<sign>&&|\|\||==|!=|<=|>=|[-+*/%<>!?:.,()\[\]]))""",
    re.VERBOSE,
)
_ESCAPE: Final = re.compile(r"\\(.)")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}
_MACROS: Final = frozenset({"exists", "all", "exists_one", "filter", "map"})
_SEMVER: Final = re.compile(r"(\d{1,18})\.(\d{1,18})\.(\d{1,18})(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")


class CelError(Exception):
    """The expression cannot be read, or has no value for this device; the text names the place or the field."""


class Amount(NamedTuple):
    """A Kubernetes quantity."""

    value: Fraction


class Version(NamedTuple):
    """A semantic version; ``rest`` orders pre-releases before the release."""

    numbers: tuple[int, int, int]
    rest: tuple[tuple[int, int, str], ...]


class Expression(NamedTuple):
    """One part of a parsed expression: its kind, a name or value, and its parts."""

    kind: str
    value: Any
    parts: tuple[Expression, ...] = ()


def parse(text: str) -> Expression:
    """Parse an expression. Raises CelError."""
    if len(text) > MAX_LENGTH:
        raise CelError(f"the expression has {len(text)} characters, at most {MAX_LENGTH} are read")
    parser = _Parser(_tokens(text))
    try:
        node = parser.expression()
    except RecursionError:
        raise CelError(_TOO_DEEP) from None
    if parser.peek() is not None:
        raise CelError(f"unexpected {parser.peek()!r} in the expression")
    return node


def holds(expression: Expression, variables: Mapping[str, Any]) -> bool:
    """Whether an expression is true. Raises CelError, also when its value is not a boolean."""
    try:
        value = _Evaluation().of(expression, variables)
    except RecursionError:  # long chains of operators or members are deep, too
        raise CelError(_TOO_DEEP) from None
    if not isinstance(value, bool):
        raise CelError(f"the expression gives {type(value).__name__}, not true or false")
    return value


def version(text: str) -> Version:
    """A semantic version. Raises CelError."""
    found = _SEMVER.fullmatch(text) if len(text) <= 128 else None
    if found is None:
        raise CelError(f"{text[:80]!r} is not a semantic version")
    pre = tuple(_identifier(part) for part in (found[4] or "").split(".") if part)
    return Version((int(found[1]), int(found[2]), int(found[3])), pre or ((2, 0, ""),))


def _identifier(part: str) -> tuple[int, int, str]:
    """A part of what follows the hyphen: numbers come before words."""
    number = whole_number(part, digits=128)
    return (1, 0, part) if number is None else (0, number, "")


def _tokens(text: str) -> list[tuple[str, str]]:
    out, at, end = [], 0, len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            raise CelError(f"unreadable at character {at + 1}: {text[at : at + 20]!r}")
        out.append((found.lastgroup, found[found.lastgroup]))
        at = found.end()
    return out


class _Parser:
    """Recursive descent in the order of precedence of cel-spec."""

    _LEVELS: Final = (("||",), ("&&",), ("==", "!=", "<", "<=", ">", ">=", "in"), ("+", "-"), ("*", "/", "%"))

    def __init__(self, tokens: Sequence[tuple[str, str]]) -> None:
        self._tokens, self._at, self._depth = tokens, 0, 0

    def peek(self) -> str | None:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else None

    def expression(self) -> Expression:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise CelError(f"the expression is nested more than {_MAX_DEPTH} deep")
        node = self._binary(0)
        if self._take("?"):
            first = self.expression()
            self._expect(":")
            node = Expression("if", None, (node, first, self.expression()))
        self._depth -= 1
        return node

    def _binary(self, level: int) -> Expression:
        if level == len(self._LEVELS):
            return self._unary()
        node = self._binary(level + 1)
        while self.peek() in self._LEVELS[level] and self._tokens[self._at][0] != "text":
            sign = self._next()[1]
            node = Expression("binary", sign, (node, self._binary(level + 1)))
        return node

    def _unary(self) -> Expression:
        signs = []
        while self.peek() in ("!", "-") and self._tokens[self._at][0] == "sign":
            signs.append(self._next()[1])
            if len(signs) > _MAX_DEPTH:
                raise CelError("too many signs in a row")
        node = self._member()
        for sign in reversed(signs):
            node = Expression("unary", sign, (node,))
        return node

    def _member(self) -> Expression:
        node = self._primary()
        while (sign := self.peek()) in (".", "[") and self._tokens[self._at][0] == "sign":
            self._next()
            if sign == "[":
                node = Expression("index", None, (node, self.expression()))
                self._expect("]")
                continue
            kind, name = self._next()
            if kind != "name":
                raise CelError(f"a name must follow the dot, not {name!r}")
            node = (
                Expression("call", name, (node, *self._arguments()))
                if self._take("(")
                else Expression("field", name, (node,))
            )
        return node

    def _primary(self) -> Expression:
        kind, text = self._next()
        match kind:
            case "number":
                return Expression("value", _number(text))
            case "text":
                return Expression("value", _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[1]), text[1:-1]))
            case "name" if text in ("true", "false", "null"):
                return Expression("value", {"true": True, "false": False, "null": None}[text])
            case "name":
                return Expression("function", text, self._arguments()) if self._take("(") else Expression("name", text)
        if text == "(":
            node = self.expression()
            self._expect(")")
            return node
        if text == "[":
            return Expression("list", None, self._arguments("]"))
        raise CelError(f"unexpected {text!r} in the expression")

    def _arguments(self, end: str = ")") -> tuple[Expression, ...]:
        parts: list[Expression] = []
        while not self._take(end):
            if parts:
                self._expect(",")
            parts.append(self.expression())
        return tuple(parts)

    def _next(self) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise CelError("the expression ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _take(self, sign: str) -> bool:
        found = self.peek() == sign and self._tokens[self._at][0] == "sign"
        self._at += found
        return found

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise CelError(f"{sign!r} is missing before {self.peek()!r}")


class _Evaluation:
    """One evaluation; it ends after ``MAX_STEPS`` steps."""

    def __init__(self) -> None:
        self._steps = 0

    def of(self, node: Expression, names: Mapping[str, Any]) -> Any:
        """The value of a part. Raises CelError."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise CelError(f"the expression takes more than {MAX_STEPS} steps")
        match node.kind:
            case "value":
                return node.value
            case "name":
                if node.value not in names:
                    raise CelError(f"nothing is named {node.value!r}")
                return names[node.value]
            case "list":
                return [self.of(part, names) for part in node.parts]
            case "if":
                return self.of(node.parts[1 if self._truth(node.parts[0], names) else 2], names)
            case "unary":
                value = self.of(node.parts[0], names)
                if node.value == "!" and isinstance(value, bool):
                    return not value
                if node.value == "-" and _is_number(value):
                    return -value
                raise CelError(f"{node.value} does not go with {type(value).__name__}")
            case "binary":
                return self._binary(node, names)
            case "field":
                return _field(self.of(node.parts[0], names), node.value)
            case "index":
                return _item(self.of(node.parts[0], names), self.of(node.parts[1], names))
            case "function":
                return self._function(node, names)
        return self._call(node, names)

    def _truth(self, node: Expression, names: Mapping[str, Any]) -> bool:
        value = self.of(node, names)
        if not isinstance(value, bool):
            raise CelError(f"{type(value).__name__} stands where true or false must stand")
        return value

    def _binary(self, node: Expression, names: Mapping[str, Any]) -> Any:
        first, second = node.parts
        if node.value in ("&&", "||"):
            return self._logical(node.value == "||", first, second, names)
        left, right = self.of(first, names), self.of(second, names)
        if node.value in ("==", "!="):
            return _equal(left, right) == (node.value == "==")
        if node.value == "in":
            if not isinstance(right, list | Mapping):
                raise CelError(f"'in' does not go with {type(right).__name__}")
            return any(_equal(left, one) for one in right)
        return _compute(node.value, left, right)

    def _logical(self, decisive: bool, first: Expression, second: Expression, names: Mapping[str, Any]) -> bool:
        """And, or: an error on one side counts only where the other side does not decide (cel-spec)."""
        try:
            left = self._truth(first, names)
        except CelError:
            if self._truth(second, names) is decisive:
                return decisive
            raise
        return decisive if left is decisive else self._truth(second, names)

    def _function(self, node: Expression, names: Mapping[str, Any]) -> Any:
        if node.value == "has" and len(node.parts) == 1 and node.parts[0].kind == "field":
            owner = self.of(node.parts[0].parts[0], names)
            return isinstance(owner, Mapping) and node.parts[0].value in owner
        values = [self.of(part, names) for part in node.parts]
        match node.value, values:
            case "size", [str() | list() | Mapping() as one]:
                return len(one)
            case "int", [int() | float() as one] if _is_number(one):
                return _bounded(int(one))
            case "int", [str() as one] if re.fullmatch(r"-?\d{1,18}", one):
                return int(one)
            case "string", [str() as one]:
                return one
            case "string", [int() as one] if _is_number(one):
                return str(one)
            case "quantity", [str() as one] if (exact := quantities.parse(one)) is not None:
                return Amount(exact)
            case "isQuantity", [str() as one]:
                return quantities.parse(one) is not None
            case "semver", [str() as one]:
                return version(one)
            case "isSemver", [str() as one]:
                return _SEMVER.fullmatch(one) is not None
        given = ", ".join(type(one).__name__ for one in values)
        raise CelError(f"function {node.value}({given}) is not known or does not take this")

    def _call(self, node: Expression, names: Mapping[str, Any]) -> Any:
        owner, *rest = node.parts
        if owner == Expression("name", "cel") and node.value == "bind" and len(rest) == 3 and rest[0].kind == "name":
            return self.of(rest[2], {**names, rest[0].value: self.of(rest[1], names)})
        value = self.of(owner, names)
        if node.value in _MACROS:
            return self._macro(node.value, value, rest, names)
        values = [self.of(part, names) for part in rest]
        match value, node.value, values:
            case str(), "startsWith", [str() as one]:
                return value.startswith(one)
            case str(), "endsWith", [str() as one]:
                return value.endswith(one)
            case str(), "contains", [str() as one]:
                return one in value
            case str(), "lowerAscii", []:
                return value.lower()
            case str(), "upperAscii", []:
                return value.upper()
            case str() | list() | Mapping(), "size", []:
                return len(value)
            case Amount() | Version(), "compareTo", [one] if type(one) is type(value):
                return (tuple(value) > tuple(one)) - (tuple(value) < tuple(one))
            case Amount() | Version(), "isGreaterThan", [one] if type(one) is type(value):
                return tuple(value) > tuple(one)
            case Amount() | Version(), "isLessThan", [one] if type(one) is type(value):
                return tuple(value) < tuple(one)
            case Version(), "major", []:
                return value.numbers[0]
            case Version(), "minor", []:
                return value.numbers[1]
            case Version(), "patch", []:
                return value.numbers[2]
            case Amount(), "asInteger", [] if value.value.denominator == 1:
                return _bounded(int(value.value))
        raise CelError(f"{type(value).__name__} has no function {node.value!r} for what it is given")

    def _macro(self, name: str, value: Any, rest: Sequence[Expression], names: Mapping[str, Any]) -> Any:
        if not isinstance(value, list | Mapping) or len(rest) != 2 or rest[0].kind != "name":
            raise CelError(f"{name} needs a list, a name and an expression")
        variable = rest[0].value
        if name == "map":
            return [self.of(rest[1], {**names, variable: one}) for one in value]
        found = [one for one in value if self._truth(rest[1], {**names, variable: one})]
        match name:
            case "exists":
                return bool(found)
            case "all":
                return len(found) == len(value)
            case "exists_one":
                return len(found) == 1
        return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _equal(left: Any, right: Any) -> bool:
    """Equality of CEL: values of different types differ, numbers compare as numbers."""
    if _is_number(left) and _is_number(right):
        return bool(left == right)
    if any(isinstance(one, list) for side in (left, right) if isinstance(side, list) for one in side):
        # lists that hold one list many times, again and again, would be compared for ever
        raise CelError("lists of lists are not compared")
    return type(left) is type(right) and bool(left == right)


def _number(text: str) -> int | float:
    """A literal. Raises CelError."""
    try:
        if len(text) > _MAX_DIGITS:
            raise ValueError
        value: int | float = float(text) if "." in text else int(text, 0)
    except ValueError:
        raise CelError(f"{text[:_MAX_DIGITS]!r} is not a number that can be read") from None
    _bounded(value)
    return value


def _bounded(value: Any) -> Any:
    """A result, unless it is larger than CEL allows. Raises CelError."""
    if isinstance(value, str) and len(value) > MAX_TEXT:
        raise CelError(f"a text of more than {MAX_TEXT} characters")
    if isinstance(value, int) and not _NUMBERS[0] <= value <= _NUMBERS[1]:
        raise CelError("a whole number of more than 64 bits")
    if isinstance(value, float) and not isfinite(value):
        raise CelError("a number that is too large")
    return value


def _compute(sign: str, left: Any, right: Any) -> Any:
    numbers = _is_number(left) and _is_number(right)
    texts = isinstance(left, str) and isinstance(right, str)
    match sign:
        case "<" | "<=" | ">" | ">=" if numbers or texts:
            less, same = left < right, left == right
            return {"<": less, "<=": less or same, ">": not (less or same), ">=": not less}[sign]
        case "+" if numbers or texts:
            return _bounded(left + right)
        case "-" if numbers:
            return _bounded(left - right)
        case "*" if numbers:
            return _bounded(left * right)
        case "/" | "%" if numbers and right:
            # whole numbers are cut towards zero
            whole = isinstance(left, int) and isinstance(right, int)
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1) if whole else left / right
            return _bounded(quotient if sign == "/" else left - quotient * right)
    raise CelError(f"{sign} does not go with {type(left).__name__} and {type(right).__name__}")


def _field(owner: Any, name: str) -> Any:
    if isinstance(owner, Mapping) and name in owner:
        return owner[name]
    raise CelError(f"there is no field {name!r}")


def _item(owner: Any, key: Any) -> Any:
    if not isinstance(key, str | int):
        raise CelError(f"{type(key).__name__} is not a key of an item")
    if isinstance(owner, Domains):
        return owner.get(str(key), {})
    if isinstance(owner, Mapping) and key in owner:
        return owner[key]
    if isinstance(owner, list) and isinstance(key, int) and not isinstance(key, bool) and 0 <= key < len(owner):
        return owner[key]
    raise CelError(f"there is no item {str(key)[:80]!r}")


class Domains(dict[str, Mapping[str, Any]]):
    """Attributes or capacities by domain; a domain without any is empty, not missing (resource.k8s.io/v1)."""


__all__ = ["MAX_STEPS", "Amount", "CelError", "Domains", "Expression", "Version", "holds", "parse", "version"]
