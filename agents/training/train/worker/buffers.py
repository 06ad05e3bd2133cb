"""Buffers of models as they were after the last finished step.

A forward pass changes some (running statistics of BatchNorm, scales of FP8), outside the window in which state may
change. A step that is done again would change them twice, so what an unfinished step has changed is undone. PyTorch
counts the changes of most tensors, but not those that BatchNorm's kernels make: small buffers are copied after every
step, others when they were seen to change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

TINY = 64 << 10
"""Bytes of a buffer up to which it is copied after every step."""
SMALL = 16 << 20
"""Bytes of a buffer up to which it is copied before it was seen to change."""


def version(tensor: torch.Tensor) -> int:
    """How often a tensor, or the shard that it stands for, was changed; 0 for one that cannot change."""
    local = getattr(tensor, "_local_tensor", tensor)
    return 0 if local.is_inference() else local._version


@dataclass
class _Kept:
    """A buffer at the end of a step: its count of changes then, and its values, once it was seen to change."""

    buffer: torch.Tensor
    version: int
    tiny: bool
    values: torch.Tensor | None = None


class Buffers:
    """The buffers of these models."""

    def __init__(self, models: Sequence[torch.nn.Module]) -> None:
        self._models = models
        self._kept: dict[tuple[int, str], _Kept] = {}
        self._places: list[tuple[tuple[int, str], torch.nn.Module, str]] = []
        self._known = False

    def keep(self) -> None:
        """Remember the present values."""
        if not self._known:
            self._find()

        changed: list[_Kept] = []
        for key, module, name in self._places:
            buffer = module._buffers.get(name)
            if buffer is None:
                self._kept.pop(key, None)
                continue
            kept = self._kept.get(key)
            if kept is None or kept.buffer is not buffer:
                values = _copy(buffer) if buffer.nbytes <= SMALL else None
                self._kept[key] = _Kept(buffer, version(buffer), buffer.nbytes <= TINY, values)
            elif kept.tiny:
                # BatchNorm has three of them in each layer: their count of changes says nothing and is not asked for
                changed.append(kept)
            elif kept.version != (now := version(buffer)):
                kept.version = now
                if kept.values is None:
                    kept.values = _copy(buffer)
                else:
                    changed.append(kept)

        if changed:
            with torch.no_grad():
                torch._foreach_copy_([one.values for one in changed], [one.buffer for one in changed])

    def rewind(self) -> bool:
        """Bring back the values that were last kept. False when a buffer has changed of which there is no copy."""
        complete = True
        with torch.no_grad():
            for key, module, name in self._places:
                kept = self._kept.get(key)
                if kept is None:
                    continue
                module._buffers[name] = kept.buffer
                if not kept.tiny and version(kept.buffer) == kept.version:
                    continue
                if kept.values is None:
                    complete = False
                    continue
                kept.buffer.copy_(kept.values)
                kept.version = version(kept.buffer)
        return complete

    def _find(self) -> None:
        self._known = True
        seen: set[int] = set()
        for index, model in enumerate(self._models):
            for path, module in model.named_modules():
                for name, buffer in module._buffers.items():
                    if buffer is not None and id(buffer) not in seen and not buffer.is_meta:
                        seen.add(id(buffer))
                        self._places.append(((index, f"{path}.{name}"), module, name))


def _copy(buffer: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return buffer.detach().clone()
