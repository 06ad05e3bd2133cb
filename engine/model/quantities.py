"""Kubernetes quantities as integers (https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/)."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

_SUFFIXES: dict[str, Decimal] = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}


def parse(value: object) -> Decimal:
    """The exact number a quantity stands for.

    Raises:
        ValueError: not a quantity.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    text = str(value).strip()
    number = text.rstrip("numkKMGTPEi")
    factor = _SUFFIXES.get(text[len(number) :])
    try:
        if factor is not None and number:
            return Decimal(number) * factor
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text[:40]!r} is no Kubernetes quantity") from None


def amount(resource: str, value: object) -> int:
    """A resource amount in whole units: ``cpu`` in milli-cores, everything else rounded up to pieces or bytes.

    Raises:
        ValueError: not a quantity.
    """
    if isinstance(value, str) and value.isdigit():
        return int(value) * 1000 if resource == "cpu" else int(value)
    exact = parse(value) * 1000 if resource == "cpu" else parse(value)
    whole = int(exact)
    return whole + 1 if exact > whole else whole
