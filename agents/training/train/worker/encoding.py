"""State as JSON and a list of tensors, for copies between ranks. Nothing is pickled, so nothing hostile is unpickled;
numbers keep every bit (JSON writes the shortest text that reads back as the same double), and values their class.

A class that is not known here is refused, also where it is derived from a known one: it would come back as another.
"""

from __future__ import annotations

import base64
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import torch

from belay.agents.training.train.worker.interruption import TrainingError

_DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
_FACTORIES: dict[str, Callable[[], Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "list": list,
    "dict": dict,
    "set": set,
}
"""Default factories of a ``defaultdict`` by name; others are code, which is not sent."""
DEPTH = 100
"""Most values inside each other; deeper ones usually contain themselves."""


def encode(value: Any, tensors: list[torch.Tensor], path: str = "state", depth: int = 0) -> Any:
    """JSON for ``value``; its tensors are appended to ``tensors``. Raises ``TrainingError`` for values that cannot be
    copied to another rank."""
    if isinstance(value, torch.Tensor):
        return _tensor(value, tensors, path)
    if value is None or type(value) in (bool, int, float, str):
        return value
    if depth > DEPTH:
        raise TrainingError(f"{path[:200]} … is nested more than {DEPTH} deep: it may contain itself")

    def inner(item: Any, below: str = "") -> Any:
        return encode(item, tensors, path + below, depth + 1)

    if type(value) is list:
        return [inner(item, f"[{index}]") for index, item in enumerate(value)]
    if (mark := _SEQUENCES.get(type(value))) is not None:
        return {mark: [inner(item, f"[{index}]") for index, item in enumerate(value)]}
    if type(value) in (set, frozenset):
        mark = "$set" if type(value) is set else "$frozenset"
        return {mark: [inner(item) for item in sorted(value, key=repr)]}
    if type(value) is deque:
        return {"$deque": [value.maxlen, [inner(item, f"[{index}]") for index, item in enumerate(value)]]}
    if type(value) is defaultdict:
        return {"$defaultdict": [_factory(value, path), inner(dict(value))]}
    if (mark := _MAPPINGS.get(type(value))) is not None:
        return {mark: [[inner(key), inner(item, f"[{key!r}]")] for key, item in value.items()]}
    if (simple := _simple(value)) is not None:
        return simple
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return {"$numpy": [str(value.dtype), inner(value.tolist()), type(value).__name__ != "ndarray"]}
    raise TrainingError(
        f"{path} holds a {type(value).__module__}.{type(value).__qualname__}, which cannot be copied to another rank: "
        "give tensors, numbers, texts and lists or dicts of these"
    )


_SEQUENCES: dict[type, str] = {tuple: "$tuple", torch.Size: "$size"}
_MAPPINGS: dict[type, str] = {dict: "$dict", OrderedDict: "$ordered", Counter: "$counter"}


def _tensor(value: torch.Tensor, tensors: list[torch.Tensor], path: str) -> Any:
    local = value.to_local() if hasattr(value, "to_local") else value
    if local.layout is not torch.strided or local.is_quantized:
        raise TrainingError(f"{path} is a {local.layout} tensor: only plain (strided) tensors can be repaired")
    if local.is_meta:
        raise TrainingError(f"{path} is on the device meta and has no values: give it memory before it is protected")
    tensors.append(local.detach())
    described = [str(local.dtype).removeprefix("torch."), list(local.shape), local.device.type]
    return {"$tensor": [len(tensors) - 1, *described]}


def _simple(value: Any) -> dict[str, Any] | None:
    """Values without others inside."""
    if type(value) is bytes:
        return {"$bytes": base64.b64encode(value).decode()}
    if type(value) is complex:
        return {"$complex": [value.real, value.imag]}
    if type(value) is range:
        return {"$range": [value.start, value.stop, value.step]}
    if isinstance(value, torch.dtype):
        return {"$dtype": str(value)}
    if isinstance(value, torch.device):
        return {"$device": str(value)}
    return None


def _factory(value: defaultdict[Any, Any], path: str) -> str | None:
    made = value.default_factory
    if made is None:
        return None
    name = getattr(made, "__name__", "")
    if _FACTORIES.get(name) is not made:
        raise TrainingError(
            f"{path} is a defaultdict of {name or made!r:.60}: only those of {', '.join(_FACTORIES)} can be copied to "
            "another rank"
        )
    return name


def decode(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The inverse of ``encode``. Raises ``ValueError`` for anything else."""
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    made = _DECODERS.get(kind)
    if made is None:
        raise ValueError(f"unknown mark {kind!r} of an encoded value")
    return made(content, tensors)


def _pairs(content: Any, tensors: list[torch.Tensor]) -> list[tuple[Any, Any]]:
    return [(decode(key, tensors), decode(item, tensors)) for key, item in content]


def _defaultdict(content: Any, tensors: list[torch.Tensor]) -> defaultdict[Any, Any]:
    name, items = content
    return defaultdict(None if name is None else _FACTORIES[name], decode(items, tensors))


def _numpy(content: Any, tensors: list[torch.Tensor]) -> Any:
    import numpy

    dtype, items, scalar = content
    array = numpy.array(decode(items, tensors), dtype=dtype)
    return array[()] if scalar else array


_DECODERS: dict[str, Callable[[Any, list[torch.Tensor]], Any]] = {
    "$tensor": lambda content, tensors: tensors[content[0]],
    "$tuple": lambda content, tensors: tuple(decode(content, tensors)),
    "$size": lambda content, tensors: torch.Size(decode(content, tensors)),
    "$set": lambda content, tensors: set(decode(content, tensors)),
    "$frozenset": lambda content, tensors: frozenset(decode(content, tensors)),
    "$deque": lambda content, tensors: deque(decode(content[1], tensors), content[0]),
    "$dict": lambda content, tensors: dict(_pairs(content, tensors)),
    "$ordered": lambda content, tensors: OrderedDict(_pairs(content, tensors)),
    "$counter": lambda content, tensors: Counter(dict(_pairs(content, tensors))),
    "$defaultdict": _defaultdict,
    "$bytes": lambda content, _: base64.b64decode(content),
    "$complex": lambda content, _: complex(*content),
    "$range": lambda content, _: range(*content),
    "$dtype": lambda content, _: _DTYPES[content.removeprefix("torch.")],
    "$device": lambda content, _: torch.device(content),
    "$numpy": _numpy,
}


def described(value: Any, found: list[tuple[torch.dtype, list[int], str]]) -> list[tuple[torch.dtype, list[int], str]]:
    """(dtype, shape, kind of device) of every tensor of an encoded value, in the order of its tensors."""
    if isinstance(value, list):
        for item in value:
            described(item, found)
    elif isinstance(value, dict):
        ((kind, content),) = value.items()
        if kind == "$tensor":
            found.append((_DTYPES[content[1]], [int(size) for size in content[2]], str(content[3])))
        elif kind in ("$deque", "$defaultdict", "$numpy"):
            described(content[1], found)
        else:
            described(content, found)
    return found
