"""The switches for parts of a reset: ``hotResetPluginConfiguration.json``, read before every reset.

A list of ``{"pluginName": …, "state": "ON"|"OFF"}``; without a file, and for plugins it does not name, the defaults
hold. Source: docs/zh/scheduling/05_developer_guide/02_dp_hot_reset_plugin_development.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import msgspec

FILE: Final = Path("/usr/local/hotResetPluginConfiguration.json")
MAX_BYTES: Final = 1 << 20
#: An A3 module that refuses an in-band reset is reset by its board controller.
OUT_OF_BAND: Final = "outbandReset"
#: Resets are reported as Events.
RECORD: Final = "resetRecord"
DEFAULTS: Final = {OUT_OF_BAND: True, RECORD: False}


class _Entry(msgspec.Struct, rename="camel"):
    plugin_name: str
    state: Literal["ON", "OFF"]


class ResetPlugins:
    """The switches as the newest readable file has them. ``problem`` says what is wrong with the file, if anything."""

    def __init__(self, file: Path | None) -> None:
        self._file, self._on = file, dict(DEFAULTS)
        self.problem = ""

    def read(self) -> None:
        """Read the file again; one that cannot be read changes nothing."""
        self.problem = ""
        if self._file is None:
            return
        try:
            with self._file.open("rb") as stream:
                raw = stream.read(MAX_BYTES + 1)
            if len(raw) > MAX_BYTES:
                raise ValueError(f"is larger than {MAX_BYTES} bytes")
            entries = msgspec.json.decode(raw, type=list[_Entry])
        except FileNotFoundError:
            self._on = dict(DEFAULTS)
            return
        except (OSError, ValueError, RecursionError) as error:
            self.problem = f"{self._file}: {getattr(error, 'strerror', None) or error}; what was read before holds"
            return
        self._on = DEFAULTS | {entry.plugin_name: entry.state == "ON" for entry in entries}

    def on(self, name: str) -> bool:
        """Return whether a plugin is on."""
        return self._on.get(name, False)

    @property
    def others(self) -> list[str]:
        """The plugins of this site that are on (`hooks.py`), in the order of the file."""
        return [name for name, state in self._on.items() if state and name not in DEFAULTS]
