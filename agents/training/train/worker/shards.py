"""The shard of each parameter that a rank holds, in whatever state FSDP2 has its modules.

FSDP2 gathers the parameters of a group while it computes, and puts the whole ones in the place of the shards: between
forward and backward ``named_parameters()`` gives whole parameters for the root and for the block that computes. An
interruption may come at any of these points; what an optimizer updates, and what is repaired, is always the shard.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def named_parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and parameters, each once, shards in the place of what FSDP2 has gathered. Nothing is changed by it."""
    shards = _shards(model)
    for name, parameter in model.named_parameters(remove_duplicate=True):
        yield name, shards.get(id(parameter), parameter)


def parameters(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """The same without names."""
    for _, parameter in named_parameters(model):
        yield parameter


def _shards(model: torch.nn.Module) -> dict[int, torch.Tensor]:
    """Id of the parameter that a module has at present → the shard that it stands for."""
    found: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for managed in _managed_by_fsdp(module):
            place = managed._module_info
            present = getattr(place.module, place.param_name, None)
            found[id(present)] = managed.sharded_param
    return found


def _managed_by_fsdp(module: torch.nn.Module) -> list[Any]:
    """FSDP2's records of the parameters of one group."""
    reach = getattr(module, "_get_fsdp_state", None)
    if reach is None:
        return []
    state = reach()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        # PyTorch before 2.12 has one group a module
        single = getattr(state, "_fsdp_param_group", None)
        groups = [] if single is None else [single]
    return [managed for group in groups for managed in group.fsdp_params]
