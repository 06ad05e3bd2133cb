"""Settings of the device plugin: the flags of MindCluster's device plugin under Belay's names, and kubelet's paths.

Defaults and ranges: component/ascend-device-plugin/main.go.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from belay.engine.model.labels import INFER_CARD_TYPE

PLUGIN_FOLDER: Final = Path("/var/lib/kubelet/device-plugins")
POD_RESOURCES: Final = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
SOFT_SHARES: Final = 100
#: Families whose chips can be split into vNPUs on demand.
DYNAMIC_FAMILIES: Final = ("Ascend310P", "Ascend910B", "Ascend910A3")
DUO: Final = "card-300i-duo"
#: What the driver calls the core board that cannot be cut on demand.
SOC_PRODUCT: Final = "Atlas 200I SoC A1"


class PluginSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Field ← flag: volcano ← volcanoType, preset ← presetVirtualDevice, mixed ← use310PMixedInsert, share ←
    shareDevCount, soft_share_dir ← softShareDevConfigDir, single_die ← useSingleDieMode, edge ← fdFlag, slow_node ←
    enableSlowNode, from_kubelet ← getPodFromKubelet.

    ``runtime``: the Ascend runtime creates containers and mounts devices itself (the plugin's environment has
    ``ASCEND_DOCKER_RUNTIME=True``). ``folder`` holds kubelet's sockets, ``dev`` the device nodes. The plugin searches
    ``attempts`` times for the pod that the scheduler chose, ``pause`` seconds apart; ``confirm`` is the time in seconds
    that kubelet may take to record an answer.
    """

    volcano: bool = False
    preset: bool = True
    mixed: bool = False
    share: int = 1
    soft_share_dir: str = ""
    single_die: bool = False
    edge: bool = False
    slow_node: bool = False
    from_kubelet: bool = False
    runtime: bool = False
    host_ip: str = ""
    kubelet_port: int = 10250
    folder: Path = PLUGIN_FOLDER
    pod_resources: Path = POD_RESOURCES
    dev: Path = Path("/dev")
    enpu: Path = Path("/etc/enpu")
    attempts: int = 3
    pause: float = 1.0
    confirm: float = 10.0
    period: float = 5.0
    watch: float = 1.0
    ask_timeout: float = 2.0

    def __post_init__(self) -> None:
        if not 1 <= self.share <= 100:
            raise ValueError(f"shareDevCount {self.share} is out of range; use 1 to 100")
        if not self.preset and not self.volcano:
            raise ValueError("presetVirtualDevice=false (vNPUs cut as pods need them) needs volcanoType=true")
        if not self.preset and self.share != 1:
            raise ValueError("presetVirtualDevice=false needs shareDevCount=1")
        if self.mixed and (self.volcano or self.share != 1):
            raise ValueError("use310PMixedInsert needs volcanoType=false and shareDevCount=1")
        if self.soft_share_dir:
            if not self.soft_share_dir.startswith("/"):
                raise ValueError(f"softShareDevConfigDir {self.soft_share_dir!r} is not an absolute path")
            if self.share != SOFT_SHARES or not self.volcano:
                raise ValueError(f"softShareDevConfigDir needs shareDevCount={SOFT_SHARES} and volcanoType=true")
        if not 0 < self.kubelet_port <= 65535:
            raise ValueError(f"kubelet port {self.kubelet_port} is out of range")

    @property
    def dynamic(self) -> bool:
        """Whether vNPUs are created on demand."""
        return not self.preset

    @property
    def soft(self) -> bool:
        """Whether chips are shared by the vCANN runtime."""
        return bool(self.soft_share_dir)

    def check_products(self, products: Collection[str]) -> None:
        """Check the settings against what the driver calls the node's cards. Raises ValueError naming the flag."""
        if self.dynamic and SOC_PRODUCT in products:
            raise ValueError(
                f"presetVirtualDevice=false is not for {SOC_PRODUCT}, whose chips cannot be cut as pods need them: "
                "set it to true"
            )

    def check(self, server_type: str, labels: dict[str, str]) -> None:
        """Check the settings against the driver's data. Raises ValueError naming the flag.

        ``server_type`` is the label's value, e.g. ``Ascend910B-20``.
        """
        family = server_type.rsplit("-", 1)[0]
        if self.dynamic and (family not in DYNAMIC_FAMILIES or labels.get(INFER_CARD_TYPE) == DUO):
            raise ValueError(
                f"presetVirtualDevice=false is for {', '.join(DYNAMIC_FAMILIES)} (no Duo cards), this is {server_type}"
            )
        if self.soft and family == "Ascend910A3" and not self.single_die:
            raise ValueError("softShareDevConfigDir on Ascend910A3 needs useSingleDieMode=true")
        if self.share > 1 and not self.soft and family not in ("Ascend310P", "Ascend310B"):
            raise ValueError(f"shareDevCount above 1 is for Ascend310P and Ascend310B, this is {server_type}")
