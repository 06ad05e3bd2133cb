"""Settings of pool and writing process: the documented keys of ``mindio_acp.initialize``, and Belay's own."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from belay.agents.training.checkpoint import slots

GIB = 1 << 30


@dataclass(frozen=True)
class WriterSettings:
    """``capacity_gb`` of the pool (GiB), ``threads`` that copy in a rank, ``slice_mb`` that a thread copies at a time,
    ``writers`` saves that are written at once, ``forever``: failed saves are tried for ever, ``idle_s``: seconds
    without clients and work after which the writing process exits; it exits at once when all its clients named their
    jobs and these have ended. ``peer_listen`` (host:port) takes copies of another host, ``peer`` gets copies of ours;
    ``peer_secret`` is a file that both know.
    """

    capacity_gb: int = 128
    block_mb: int = 128
    parallel: bool = True
    threads: int = 16
    slice_mb: int = 16
    writers: int = 32
    forever: bool = False
    idle_s: float = 1800.0
    peer_listen: str = ""
    peer: str = ""
    peer_secret: str = ""

    @property
    def capacity(self) -> int:
        """Bytes of the pool: the requested size, but at most half of the memory of this host or container."""
        return min(self.capacity_gb * GIB, slots.host_memory() // 2 // slots.UNIT * slots.UNIT)

    def text(self) -> str:
        """The settings as text, for the command line of the writing process."""
        return json.dumps(dataclasses.asdict(self))


KEYS: dict[str, tuple[str, int, int]] = {
    "memfs.data_block_pool_capacity_in_gb": ("capacity_gb", 1, 1024),
    "memfs.data_block_size_in_mb": ("block_mb", 1, 1024),
    "memfs.write.parallel.thread_num": ("threads", 2, 96),
    "memfs.write.parallel.slice_in_mb": ("slice_mb", 1, 1024),
    "background.backup.thread_num": ("writers", 1, 256),
}
"""Key → field, least and greatest value (MindIO ACP, ``initialize``). The size of blocks decides nothing here: a save
lies in one slot of its own size."""
SWITCHES = {"memfs.write.parallel.enabled": "parallel"}


def parse(given: Mapping[str, str] | None) -> WriterSettings:
    """Settings from ``server_info``. Raises ``ValueError`` that names the key and its range."""
    found: dict[str, Any] = {}
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(f"server_info must be a dictionary of texts, not {type(given).__name__}")
    for key, value in (given or {}).items():
        if key in SWITCHES:
            if str(value).lower() not in ("true", "false"):
                raise ValueError(f"{key} is {value!r:.40}; it must be true or false")
            found[SWITCHES[key]] = str(value).lower() == "true"
        elif key in KEYS:
            name, least, most = KEYS[key]
            text = str(value)
            if not (text.isascii() and text.isdecimal() and len(text) < 10 and least <= int(text) <= most):
                raise ValueError(f"{key} is {value!r:.40}; it must be a number from {least} to {most}")
            found[name] = int(text)
        else:
            raise ValueError(f"{str(key)[:80]} is not a setting; known are {', '.join([*KEYS, *SWITCHES])}")
    return WriterSettings(**found)


def from_text(text: str) -> WriterSettings:
    """The settings that :meth:`WriterSettings.text` wrote. Raises ``ValueError``."""
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise ValueError("the settings nest too deeply") from error
    known = {field.name for field in dataclasses.fields(WriterSettings)}
    if not isinstance(found, dict) or not set(found) <= known:
        raise ValueError("the settings are of another version")
    return WriterSettings(**found)
