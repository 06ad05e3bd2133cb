"""The error of this room: a report, order or annotation is invalid."""

from __future__ import annotations

_MAX_TEXT = 200
_MAX_NAME = 400
"""Longest name of an object or field in characters: kind, namespace and name of Kubernetes are at most 380."""


class WireError(ValueError):
    """A report, order or annotation that Belay rejects.

    ``object`` names the Kubernetes object, ``field`` the key or path in it; ``message`` states the error. All three
    are bounded, so that a hostile report cannot flood logs or status.
    """

    def __init__(self, object_name: str, field: str, message: str) -> None:
        self.object = _cut(object_name, _MAX_NAME)
        self.field = _cut(field, _MAX_NAME)
        self.message = _cut(message, _MAX_TEXT)
        super().__init__(f"{self.object} {self.field}: {self.message}")


class NewerFormat(WireError):
    """An object of Belay's own whose format only a newer version reads (`belay.engine.wire.formats`)."""


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
