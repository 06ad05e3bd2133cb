"""The answer to Allocate: a container's environment, device nodes and mounts.

Source: component/ascend-device-plugin/pkg/server/plugin.go and pkg/device/{ascendtools,ascend310,ascend910}.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from belay.agents.kubelet.api.deviceplugin_pb2 import ContainerAllocateResponse, DeviceSpec, Mount
from belay.agents.kubelet.pods import VISIBLE
from belay.agents.kubelet.settings import SOC_PRODUCT

OPTIONS: Final = "ASCEND_RUNTIME_OPTIONS"
ALLOW_LINK: Final = "ASCEND_ALLOW_LINK"
TOPO_FILE: Final = "HCCL_TOPO_FILE_PATH"
TOPO_FOLDER: Final = "/usr/local/Ascend/driver/topo/950/"
RC_PRODUCT: Final = "Atlas 200 Model 3000"

_ALL: Final = ("davinci_manager", "hisi_hdc", "devmm_svm")
_ALL_IF_THERE: Final = ("dvpp_cmdlist",)
_FOLDERS: Final = ("uburma", "ummu")
_SOC: Final = (
    "vpc", "vdec", "sys", "spi_smbus", "user_config", "ts_aisle", "svm0", "log_drv", "memory_bandwidth", "upgrade",
)  # fmt: skip
_SOC_IF_THERE: Final = ("event_sched", "xsmem_dev")
_310B: Final = (
    "pngd", "venc", "upgrade", "sys", "svm0", "vdec", "vpc", "ts_aisle", "log_drv", "acodec", "ai", "ao", "vo", "hdmi",
)  # fmt: skip
_EDGE_RC: Final = ("event_sched", "hi_dvpp", "log_drv", "memory_bandwidth", "svm0", "ts_aisle", "upgrade")
_MOST_NODES: Final = 256

#: Super-pod type of an Ascend950 server, or its card → topology file.
_TOPO: Final = {0: "atlas_850_1.json", 1: "atlas_950_1.json", 2: "atlas_950_2.json", 3: "atlas_850_2.json",
                4: "atlas_850_3.json"}  # fmt: skip
#: Main boards of Atlas 350 cards: single, and four in a mesh (component/ascend-common/api).
_TOPO_CARD: Final = {0x68: "atlas_350_1.json", 0x6C: "atlas_350_3.json"}


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """The devices to give: physical ids or, when ``virtual``, vNPU ids; ``visible``: their names in the environment."""

    visible: Sequence[str]
    numbers: Sequence[int]
    virtual: bool = False
    dynamic: bool = False
    mixed: bool = False
    runtime: bool = False
    edge: bool = False
    family: str = ""
    products: frozenset[str] = frozenset()
    topo_file: str = ""
    extra: Mapping[str, str] = {}
    mounts: Sequence[tuple[str, str, bool]] = ()


def respond(
    given: Given, dev: Path = Path("/dev"), exists: Callable[[Path], bool] = Path.exists
) -> ContainerAllocateResponse:
    """Build the answer. Raises ValueError when a required device node is missing."""
    envs: dict[str, str] = dict(given.extra)
    nodes: list[tuple[str, str]] = []
    if given.runtime and not given.mixed and given.products != {SOC_PRODUCT}:
        envs[VISIBLE] = ",".join(given.visible)
        envs[OPTIONS] = "VIRTUAL" if given.virtual else ""
        if given.family == "Ascend310B":
            envs[ALLOW_LINK] = "True"
    else:
        nodes = list(device_nodes(given, dev, exists))
    if given.dynamic:
        envs |= _distributed(len(given.visible))
    if given.topo_file:
        envs[TOPO_FILE] = given.topo_file
    return ContainerAllocateResponse(
        envs=envs,
        devices=[DeviceSpec(container_path=inside, host_path=host, permissions="rw") for host, inside in nodes],
        mounts=[Mount(host_path=host, container_path=inside, read_only=ro) for host, inside, ro in given.mounts],
    )


def topo_file(super_pod_type: int, mainboard: int) -> str:
    """Return the topology file of an Ascend950 server; empty if the product has none."""
    name = _TOPO_CARD.get(mainboard) or _TOPO.get(super_pod_type, "")
    return TOPO_FOLDER + name if name else ""


def _distributed(count: int) -> dict[str, str]:
    """Return the variables that frameworks read in a pod with AI cores."""
    names = ("MS_LOCAL_WORKER", "MS_WORKER_NUM", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "CM_WORKER_SIZE", "CM_LOCAL_WORKER")
    return dict.fromkeys(names, str(count)) | {"LOCAL_RANK": ",".join(str(rank) for rank in range(count))}


def device_nodes(given: Given, dev: Path, exists: Callable[[Path], bool] = Path.exists) -> Iterable[tuple[str, str]]:
    """Yield (host path, container path) of the device nodes that a container needs without the Ascend runtime: first
    one per number, then those that all share.
    """
    for number in given.numbers:
        yield str(dev / f"{'v' if given.virtual else ''}davinci{number}"), f"/dev/davinci{number}"
    docker = dev / "davinci_manager_docker"
    for name in _ALL:
        host = docker if name == "davinci_manager" and given.family == "Ascend310B" and exists(docker) else dev / name
        yield str(host), f"/dev/{name}"
    optional = list(_ALL_IF_THERE)
    if given.products == {SOC_PRODUCT}:
        for name in _SOC:
            if not exists(dev / name):
                raise ValueError(f"device node {dev / name} is missing, {SOC_PRODUCT} needs it")
            yield str(dev / name), f"/dev/{name}"
        optional += _SOC_IF_THERE
    if given.family == "Ascend310B":
        optional += _310B
    if given.edge and RC_PRODUCT in given.products:
        optional += _EDGE_RC
    for name in optional:
        if exists(dev / name):
            yield str(dev / name), f"/dev/{name}"
    for folder in _FOLDERS:
        if exists(dev / folder):
            for path in sorted((dev / folder).iterdir())[:_MOST_NODES]:
                yield str(path), f"/dev/{folder}/{path.name}"
