"""The state of a rank that is repaired from a peer: the objects given to ``protect``, and the shard that they hold."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from belay.agents.training.train.decide.donors import LAYOUT_MARK
from belay.agents.training.train.worker import shards
from belay.agents.training.train.worker.buffers import Buffers, version
from belay.agents.training.train.worker.encoding import decode, encode
from belay.agents.training.train.worker.interruption import TrainingError
from belay.agents.training.train.worker.optimizers import RepairedOptimizer, has_groups, levels

SAMPLED = 64
"""How many parameters, and values at the beginning of each, copies are compared by."""


@runtime_checkable
class Stateful(Protocol):
    """An object whose state can be read and restored, such as an optimizer, a schedule or a sampler."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Restore this state."""


@runtime_checkable
class Checkpoint(Protocol):
    """Loads a checkpoint when no living rank holds a shard: given as ``protect(checkpoint=…)``.

    An object may also have ``steps()``, all finished steps that it can load, newest first; then ranks agree on the
    newest one that all shards have.
    """

    def latest(self) -> int | None:
        """Number of finished steps in the newest complete checkpoint; None without one."""

    def load(self, step: int) -> None:
        """Load that checkpoint into the model, the optimizer and the rest."""


def named(what: str, given: Any, kind: type[Any], wanted: str) -> dict[str, Any]:
    """One object, or several in a list or dict, by name. Raises ``TypeError``."""
    if given is None:
        return {}
    if isinstance(given, Mapping) and not isinstance(given, kind):
        found = {f"{what}/{name}": value for name, value in given.items()}
    elif isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
        found = {f"{what}/{index}": value for index, value in enumerate(given)}
    else:
        found = {what: given}
    for name, value in found.items():
        if not isinstance(value, kind):
            raise TypeError(f"protect({what}=…): {name} is a {type(value).__qualname__}; give {wanted}")
    return found


class Protected:
    """All protected objects of this rank. ``whole`` is False while a repair or an update has changed only part of
    them. ``done``: finished steps that are part of the state, those up to the last update. ``part`` names what
    this rank holds where ranks hold different parts of the state; those of one part are copies."""

    def __init__(self, model: Any, optimizer: Any, schedule: Any, state: Any, rank: int, part: str = "") -> None:
        self.models: dict[str, torch.nn.Module] = named(
            "model", model, torch.nn.Module, "a torch.nn.Module, or a list or dict of them"
        )
        stateful: Any = Stateful
        self.stateful: dict[str, Stateful] = {
            **named("optimizer", optimizer, stateful, "an optimizer, or a list or dict of them"),
            **named("schedule", schedule, stateful, "a schedule with state_dict and load_state_dict"),
        }
        self.tensors: dict[str, torch.Tensor] = {}
        for name, value in ({} if state is None else _mapping(state)).items():
            if isinstance(value, torch.Tensor):
                self.tensors[f"state/{name}"] = value
            elif isinstance(value, torch.nn.Module):
                self.models[f"state/{name}"] = value
            elif isinstance(value, stateful):
                self.stateful[f"state/{name}"] = value
            else:
                raise TypeError(
                    f"protect(state=…): {name!r} is a {type(value).__qualname__}; give tensors, modules or objects "
                    "with state_dict and load_state_dict"
                )
        for name, found in self.stateful.items():
            if has_groups(found):
                self.stateful[name] = RepairedOptimizer(found)
        if not (self.models or self.stateful or self.tensors):
            raise TypeError(
                "protect() was given nothing to protect: name model=, optimizer=, schedule= or state=; or late=True, "
                "where the function makes them and calls run.protect(…)"
            )
        if not isinstance(part, str):
            raise TypeError(f"protect(part={part!r}): give a text, equal in the ranks that hold copies of each other")
        self.done = -1
        self.whole = True
        self._rank, self._part = rank, part
        self._buffers = Buffers(list(self.models.values()))

    def check(self) -> None:
        """Raise ``TrainingError`` for state that could not be copied to another rank."""
        self.capture()

    def shard(self) -> str:
        """The name of the part of the state that this rank holds; ranks with the same name hold copies."""
        parts = {self._part}
        for model in self.models.values():
            for parameter in shards.parameters(model):
                if hasattr(parameter, "placements") and hasattr(parameter, "device_mesh"):
                    parts.add(_coordinate(parameter))
        for name, value in self.stateful.items():
            if isinstance(value, RepairedOptimizer) and value.own_part:
                parts.add(f"{name} of rank {self._rank}")
        return ", ".join(sorted(parts - {""})) + LAYOUT_MARK + self._layout()

    def device(self) -> str:
        """The kind of device that the models are on."""
        kinds = {parameter.device.type for model in self.models.values() for parameter in model.parameters()}
        kinds -= {"cpu", "meta"}
        return kinds.pop() if len(kinds) == 1 else "cpu"

    def capture(self) -> tuple[Any, list[torch.Tensor]]:
        """The state as JSON and tensors; the tensors are the live ones, not copies."""
        tensors: list[torch.Tensor] = []
        content = {name: encode(value, tensors, name) for name, value in self._live_tensors().items()}
        others = {name: encode(value.state_dict(), tensors, name) for name, value in self.stateful.items()}
        return {
            "$dict": [["tensors", {"$dict": list(content.items())}], ["stateful", {"$dict": list(others.items())}]]
        }, tensors

    def restore(self, meta: Any, tensors: list[torch.Tensor]) -> None:
        """Restore a captured state. Raises ``TrainingError`` when it is the state of other objects."""
        found = decode(meta, tensors)
        mine = {name: _local(tensor) for name, tensor in self._live_tensors().items()}
        different = found["tensors"].keys() ^ mine.keys() | found["stateful"].keys() ^ self.stateful.keys()
        for name in found["tensors"].keys() & mine.keys():
            if found["tensors"][name].shape != mine[name].shape:
                different.add(f"{name} {list(found['tensors'][name].shape)} and {list(mine[name].shape)}")
        if different:
            raise TrainingError(
                f"this rank and its donor protect different objects: {', '.join(sorted(different)[:5])}; every rank "
                "must build the same model and protect the same names"
            )

        with torch.no_grad():
            for name, tensor in mine.items():
                tensor.copy_(found["tensors"][name])
        for name, value in self.stateful.items():
            value.load_state_dict(found["stateful"][name])
            _distribute(value)

    def settled(self) -> None:
        """The state is that of a finished step: what a forward pass changes from now on belongs to the next one."""
        self._buffers.keep()

    def rewind(self) -> None:
        """Undo what the forward pass of an unfinished step has changed in buffers."""
        self.whole = self._buffers.rewind() and self.whole

    def buffers(self) -> list[torch.Tensor]:
        """The buffers of the models: a forward pass may change them, between two windows."""
        return [_local(buffer) for model in self.models.values() for buffer in model.buffers()]

    def of_models(self) -> list[torch.Tensor]:
        """Parameters and buffers of the models, the objects themselves."""
        return [one for model in self.models.values() for one in (*model.parameters(), *model.buffers())]

    def parameters(self) -> Iterator[torch.Tensor]:
        """The parameters of all models."""
        for model in self.models.values():
            yield from shards.parameters(model)

    def weights(self) -> list[torch.Tensor]:
        """The shards of all parameters, which copies hold alike."""
        return [_local(parameter.detach()) for parameter in self.parameters()]

    def alike(self) -> tuple[str, list[torch.Tensor]]:
        """All that copies hold alike, as text and tensors: weights, and the state of optimizers and the rest. Buffers
        may be each rank's own (BatchNorm)."""
        tensors = self.weights()
        found = {name: encode(value.state_dict(), tensors, name) for name, value in self.stateful.items()}
        return json.dumps(found, sort_keys=True), tensors

    def drop_gradients(self) -> None:
        """Drop half-reduced gradients, and views of buckets that an old group may still write to."""
        for parameter in self.parameters():
            parameter.grad = None

    def versions(self) -> int:
        """A number that every change of a parameter raises."""
        return sum(map(version, self.parameters()))

    def sample(self) -> dict[str, int]:
        """Name → a checksum of some values, equal in ranks that hold copies: of the parameters of each model, and of
        numbers and texts of the other objects."""
        found = {}
        for name, model in self.models.items():
            held = list(shards.parameters(model))
            checksum = 0
            for parameter in held[:: max(1, len(held) // SAMPLED)]:
                some = _local(parameter.detach()).flatten()[:SAMPLED].cpu().contiguous()
                checksum = zlib.crc32(bytes(some.view(torch.uint8).tolist()), checksum)
            found[name] = checksum
        for name, value in self.stateful.items():
            text = json.dumps(encode(value.state_dict(), [], name), sort_keys=True)
            found[name] = zlib.crc32(text.encode())
        return found

    def _layout(self) -> str:
        """A name for the parameters that this rank has. Stages of a pipeline differ in it."""
        found = 0
        for name, model in self.models.items():
            for key, parameter in shards.named_parameters(model):
                # the whole shape: ranks may hold shards of different sizes of the same layout
                found = zlib.crc32(f"{name}.{key} {tuple(parameter.shape)} {parameter.dtype}".encode(), found)
        return f"{found:08x}"

    def _live_tensors(self) -> dict[str, torch.Tensor]:
        found = dict(self.tensors)
        for name, model in self.models.items():
            for key, parameter in shards.named_parameters(model):
                found[f"{name}.{key}"] = parameter
            for key, buffer in model.named_buffers(remove_duplicate=True):
                found[f"{name}.{key}"] = buffer
        return found


def _mapping(state: Any) -> Mapping[str, Any]:
    if not isinstance(state, Mapping):
        raise TypeError(f"protect(state=…) is a {type(state).__qualname__}; give a dict of names")
    return state


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _distribute(stateful: Any) -> None:
    """Give an optimizer the shards of its state as DTensors again, where its parameters are DTensors."""
    if not isinstance(stateful, RepairedOptimizer):
        return
    for optimizer in levels(stateful.optimizer):
        for parameter, state in getattr(optimizer, "state", {}).items():
            if hasattr(parameter, "device_mesh") and isinstance(state, dict):
                _distribute_state(parameter, state)


def _distribute_state(parameter: Any, state: dict[str, Any]) -> None:
    made, mesh, placements = type(parameter.data).from_local, parameter.device_mesh, parameter.placements
    shape = parameter.to_local().shape
    for name, value in state.items():
        plain = isinstance(value, torch.Tensor) and not hasattr(value, "to_local")
        if plain and value.dim() and value.shape == shape:
            state[name] = made(value, mesh, placements, shape=parameter.shape, stride=parameter.stride())


def _coordinate(parameter: Any) -> str:
    """The shard of a DTensor: its position along every mesh dimension over which it is sharded."""
    mesh = parameter.device_mesh
    coordinate = mesh.get_coordinate() or ()
    names = mesh.mesh_dim_names or tuple(str(index) for index in range(mesh.ndim))
    return " ".join(
        f"shard {coordinate[index]} of {mesh.size(index)} along {names[index]}"
        for index, placement in enumerate(parameter.placements)
        if placement.is_shard() and index < len(coordinate)
    )
