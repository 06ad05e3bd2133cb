"""State as JSON and a list of tensors, for copies between ranks. Nothing is pickled, so nothing hostile is unpickled;
numbers keep every bit (JSON writes the shortest text that reads back as the same double).
"""

from __future__ import annotations

import base64
from typing import Any

import torch

from agents.training.worker.interruption import TrainingError

_DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


def encode(value: Any, tensors: list[torch.Tensor], path: str = "state") -> Any:
    """JSON for ``value``; its tensors are appended to ``tensors``. Raises ``TrainingError`` for values that cannot be
    copied to another rank."""
    if isinstance(value, torch.Tensor):
        local = value.to_local() if hasattr(value, "to_local") else value
        if local.layout is not torch.strided or local.is_quantized:
            raise TrainingError(f"{path} is a {local.layout} tensor: only plain (strided) tensors can be repaired")
        tensors.append(local.detach())
        described = [str(local.dtype).removeprefix("torch."), list(local.shape), local.device.type]
        return {"$tensor": [len(tensors) - 1, *described]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        items = [encode(item, tensors, f"{path}[{index}]") for index, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, (set, frozenset)):
        return {"$set": [encode(item, tensors, path) for item in sorted(value, key=repr)]}
    if isinstance(value, dict):
        return {
            "$dict": [
                [encode(key, tensors, path), encode(item, tensors, f"{path}[{key!r}]")] for key, item in value.items()
            ]
        }
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, (torch.dtype, torch.device)):
        return {"$dtype": str(value)} if isinstance(value, torch.dtype) else {"$device": str(value)}
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return {"$numpy": [str(value.dtype), encode(value.tolist(), tensors, path)]}
    if type(value).__name__ == "Counter":
        return encode(dict(value), tensors, path)
    raise TrainingError(
        f"{path} holds a {type(value).__module__}.{type(value).__qualname__}, which cannot be copied to another rank: "
        "give tensors, numbers, texts and lists or dicts of these"
    )


def decode(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The inverse of ``encode``. Raises ``ValueError`` for anything else."""
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "$tensor":
            return tensors[content[0]]
        case "$tuple":
            return tuple(decode(item, tensors) for item in content)
        case "$set":
            return {decode(item, tensors) for item in content}
        case "$dict":
            return {decode(key, tensors): decode(item, tensors) for key, item in content}
        case "$bytes":
            return base64.b64decode(content)
        case "$dtype":
            return _DTYPES[content.removeprefix("torch.")]
        case "$device":
            return torch.device(content)
        case "$numpy":
            import numpy

            return numpy.array(decode(content[1], tensors), dtype=content[0])
    raise ValueError(f"unknown mark {kind!r} of an encoded value")


def described(value: Any, found: list[tuple[torch.dtype, list[int], str]]) -> list[tuple[torch.dtype, list[int], str]]:
    """(dtype, shape, kind of device) of every tensor of an encoded value, in the order of its tensors."""
    if isinstance(value, list):
        for item in value:
            described(item, found)
    elif isinstance(value, dict):
        ((kind, content),) = value.items()
        if kind == "$tensor":
            found.append((_DTYPES[content[1]], [int(size) for size in content[2]], str(content[3])))
        elif kind in ("$tuple", "$set", "$dict"):
            described(content, found)
        elif kind == "$numpy":
            described(content[1], found)
    return found
