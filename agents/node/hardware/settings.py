"""The hardware that the agent monitors, and how; NodeD's flags keep their original names too.

Flags, defaults and ranges: docs/zh/scheduling 05_developer_guide (NodeD), component/noded/main.go.
"""

from __future__ import annotations

import argparse
import os
from typing import Final

import msgspec

from belay.agents.node.hardware.bmc import BmcAccess
from belay.agents.node.hardware.publicfaults import CLUSTERD

RANGES: Final = {"monitor_period": (60, 600), "report_interval": (1, 300), "result_days": (7, 700)}
_NAMES: Final = {
    "monitor_period": "monitorPeriod",
    "report_interval": "reportInterval",
    "result_days": "resultMaxAge",
}


class HardwareSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``bmc`` None: no IPMI. ``public_faults``: the gRPC address for storage faults; empty: they are written as
    ConfigMaps.

    ``monitor_period``: seconds between two looks at the alarms; ``report_interval``: between two attempts at a report
    that could not be written; ``super_pod``: pings between chips and marks for faulty jobs, where the node belongs to
    a super pod; ``result_days``: how long logs of pings are kept; ``ras_root``: the shared folder of the slow-network
    feature, empty for none.
    """

    bmc: BmcAccess | None = None
    monitor_period: int = 60
    report_interval: int = 5
    result_days: int = 7
    public_faults: str = ""
    storage: bool = True
    super_pod: bool = False
    snapshots: bool = False
    ras_root: str = ""

    def __post_init__(self) -> None:
        for field, (low, high) in RANGES.items():
            if not low <= getattr(self, field) <= high:
                raise ValueError(f"-{_NAMES[field]} {getattr(self, field)} is out of range; use {low} to {high}")
        if self.ras_root and not os.path.isabs(self.ras_root):
            raise ValueError(f"RAS_NET_ROOT_PATH {self.ras_root!r} must be an absolute path")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    group = parser.add_argument_group("node hardware (NodeD)")
    group.add_argument("--hardware", action="store_true", help="look after the node's hardware too")
    group.add_argument(
        "--ipmi", choices=["off", "open", "lanplus"], default="open",
        help="how the board's controller is reached: this node's /dev/ipmi0, or by network",
    )  # fmt: skip
    group.add_argument("--ipmi-tool", choices=["ipmitool", "freeipmi"], default="ipmitool", help="which program asks")
    group.add_argument("--ipmi-device", type=int, default=0, metavar="N", help="number of the local device: /dev/ipmiN")
    group.add_argument("--ipmi-host", default="", metavar="HOST", help="for lanplus")
    group.add_argument("--ipmi-port", type=int, default=623, help="port of the board's controller, for lanplus")
    group.add_argument("--ipmi-user", default="", help="user of the board's controller, for lanplus")
    group.add_argument("--ipmi-password-file", default="", metavar="FILE", help="its first line; mode 0600 or less")
    group.add_argument("--ipmi-cipher", type=int, default=17, metavar="SUITE", help="cipher suite of lanplus")
    group.add_argument("--ipmi-workarounds", default="", metavar="FLAGS", help="of FreeIPMI")
    group.add_argument("--ipmi-timeout", type=float, default=10.0, metavar="SECONDS", help="of one request")
    group.add_argument(
        "-monitorPeriod", dest="monitor_period", type=int, default=60, metavar="SECONDS",
        help="time between two looks at the hardware",
    )  # fmt: skip
    group.add_argument(
        "-reportInterval", dest="report_interval", type=int, default=5, metavar="SECONDS",
        help="time between two attempts at a report",
    )  # fmt: skip
    group.add_argument(
        "-resultMaxAge",
        dest="result_days",
        type=int,
        default=7,
        metavar="DAYS",
        help="how long results of pings are kept",
    )
    group.add_argument(
        "--public-faults", nargs="?", const=CLUSTERD, default="", metavar="HOST:PORT",
        help=f"send storage faults by gRPC instead of writing ConfigMaps (without a value: {CLUSTERD})",
    )  # fmt: skip
    group.add_argument(
        "--super-pod", action="store_true",
        help="on nodes of super pods: pings between chips, marks on what faulty jobs hold",
    )  # fmt: skip
    group.add_argument("--snapshots", action="store_true", help="checkpoint inference containers that ask for it")


def chosen(options: argparse.Namespace) -> HardwareSettings | None:
    """The settings that the flags give; None without ``--hardware``. Raises ValueError naming the flag."""
    if not options.hardware:
        return None
    access = None
    if options.ipmi != "off":
        access = BmcAccess(
            tool=options.ipmi_tool, interface=options.ipmi, device=options.ipmi_device, host=options.ipmi_host,
            port=options.ipmi_port, user=options.ipmi_user, password_file=options.ipmi_password_file,
            cipher=options.ipmi_cipher, workarounds=options.ipmi_workarounds, seconds=options.ipmi_timeout,
        )  # fmt: skip
    return HardwareSettings(
        bmc=access,
        monitor_period=options.monitor_period,
        report_interval=options.report_interval,
        result_days=options.result_days,
        public_faults=options.public_faults,
        super_pod=options.super_pod,
        snapshots=options.snapshots,
        ras_root=os.environ.get("RAS_NET_ROOT_PATH", ""),
    )
