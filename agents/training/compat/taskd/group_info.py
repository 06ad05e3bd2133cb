"""The communication groups of a process as a file, for slow-node detection.

`parallel_group.json`: component/taskd/taskd/python/adaptor/pytorch/group_info.py of MindCluster.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from belay.agents.training.compat.taskd.profiling_files import BASE

log = logging.getLogger(__name__)

FILE: Final = "parallel_group.json"
BACKENDS: Final = ("hccl",)


def dump_group_info() -> None:
    """Write the current groups; nothing without a job, a folder or groups. Never raises."""
    try:
        groups = gather(importlib.import_module("torch.distributed.distributed_c10d"))
        target = place(os.environ)
        write(target, groups)
        log.info("%d groups are written to %s", len(groups), target)
    except (ImportError, OSError, ValueError, RuntimeError, AttributeError) as error:
        log.error("the groups are not written: %s", str(error)[:300])


def place(environ: Mapping[str, str]) -> Path:
    """The path of the file. Raises ValueError when job or rank is unknown, or a symbolic link is in the path."""
    task, rank = environ.get("MINDX_TASK_ID", ""), environ.get("RANK", "")
    if not task or "/" in task or task in (".", ".."):
        raise ValueError("MINDX_TASK_ID is not set")
    if not rank.isdigit():
        raise ValueError("RANK is not set")
    base = Path(environ.get("GROUP_BASE_DIR") or BASE)
    if not base.is_dir():
        base = BASE
    target = base / task / rank / FILE
    for part in (target, *target.parents):
        if part.is_symlink():
            raise ValueError(f"{part} is a symbolic link")
    return target


def gather(c10d: Any) -> dict[str, dict[str, Any]]:
    """comm_name → group name, own rank in it, global ranks; groups of backend hccl only."""
    found: dict[str, dict[str, Any]] = {}
    world = c10d._world
    for group, ranks in world.pg_group_ranks.items():
        backend = world.pg_map[group][0] if group in world.pg_map else ""
        if not any(name in str(backend) for name in BACKENDS):
            continue
        own = c10d.get_rank(group)
        if own < 0:
            continue
        name = comm_name(group, own)
        title = "default_group" if group == c10d.GroupMember.WORLD else world.pg_names.get(group, name)
        found[name] = {"group_name": title, "group_rank": own, "global_ranks": sorted(ranks)}
    return found


def comm_name(group: Any, rank: int) -> str:
    """HCCL's name of the communicator; the group's own name without torch_npu."""
    npu = sys.modules.get("torch_npu")
    if npu is not None:
        device = importlib.import_module("torch").device("npu")
        return str(group._get_backend(device).get_hccl_comm_name(rank))
    return str(group.group_name)


def write(target: Path, groups: Mapping[str, Any]) -> None:
    """Write the file atomically."""
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    part = target.with_suffix(f".{os.getpid()}")
    try:
        with open(part, "w", encoding="utf-8") as stream:
            json.dump(groups, stream, indent=4)
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
