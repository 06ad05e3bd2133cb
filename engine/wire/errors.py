"""The error of this room: a report, order or annotation is invalid."""

from __future__ import annotations

_MAX_TEXT = 200


class WireError(ValueError):
    """A report, order or annotation that Belay rejects.

    ``object`` names the Kubernetes object, ``field`` the key or path in it; ``message`` states the error. The message
    is bounded, so that a hostile report cannot flood logs or status.
    """

    def __init__(self, object_name: str, field: str, message: str) -> None:
        self.object = object_name
        self.field = field
        self.message = message if len(message) <= _MAX_TEXT else message[: _MAX_TEXT - 1] + "…"
        super().__init__(f"{object_name} {field}: {self.message}")
