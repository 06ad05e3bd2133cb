"""Return codes of the driver's interface, in words (dcmi_interface_api.h)."""

from __future__ import annotations

from belay.agents.drivers.failures import DriverError

SYMBOL_MISSING, LIBRARY_MISSING, CLOSE_FAILED = -99998, -99999, -99997
NOT_READY, NOT_SUPPORTED, TIMED_OUT, BUSY = -8012, -8255, -8006, -8020

WORDS = {
    -8001: "bad parameter", -8002: "permission denied", -8003: "out of memory", -8004: "secure function failed",
    -8005: "internal error", -8006: "timed out", -8007: "bad device id", -8008: "device absent",
    -8009: "ioctl failed", -8010: "send failed", -8011: "receive failed", -8012: "not ready",
    -8013: "not supported in a container", -8014: "file error", -8015: "reset failed", -8016: "reset cancelled",
    -8017: "upgrading", -8020: "resource busy", -8022: "partition mismatch", -8023: "configuration missing",
    -8255: "not supported", SYMBOL_MISSING: "the library lacks this function", LIBRARY_MISSING: "no library",
    CLOSE_FAILED: "the library could not be closed",
}  # fmt: skip


class DcmiError(DriverError):
    """A call of the driver's interface did not return 0; ``code`` is its return code."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function}: {WORDS.get(code, 'unknown error')} ({code})")
        self.function, self.code = function, code

    @property
    def supported(self) -> bool:
        """Whether the driver supports the call; otherwise a retry never succeeds."""
        return self.code not in (NOT_SUPPORTED, SYMBOL_MISSING)
