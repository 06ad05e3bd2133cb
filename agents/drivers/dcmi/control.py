"""Operations on chips: pings, vNPUs, resets, status in the super pod."""

from __future__ import annotations

from ctypes import byref, c_int, c_uint32
from typing import Any, Final

from belay.agents.drivers.dcmi import structs
from belay.agents.drivers.dcmi.errors import DcmiError
from belay.agents.drivers.dcmi.interface import Interface, text
from belay.agents.drivers.failures import DriverError

MAX_VDEVS: Final = 32
MAX_PINGED: Final = 48
MAX_SOURCES: Final = 32
ANY_ID: Final = 0xFFFFFFFF
#: vGroups of a chip are 0 to 3 (npu-smi, create-vnpu -g); a driver without vGroups returns another number.
VGROUPS: Final = 4
IN_BAND, OUT_OF_BAND = 1, 0


class Control(Interface):
    """Calls that change something, and the readings that belong to them."""

    def die_policy(self) -> int:
        """Return how the dies of a chip are allocated: 0 together, 1 separately."""
        value = c_int()
        self.library.call("dcmi_get_multi_die_policy", byref(value))
        return value.value

    def set_die_policy(self, policy: int) -> None:
        """Allocate the dies of every chip of the node together (0) or separately (1)."""
        self.library.call("dcmi_set_multi_die_policy", policy)

    def spod_status(self, phy: int, sdid: int) -> int:
        """Return the status of a node in its super pod: 0 normal, 1 abnormal."""
        return self._number("get_spod_node_status", phy, c_uint32, sdid)

    def set_spod_status(self, phy: int, sdid: int, status: int) -> None:
        """Set the status of a node in its super pod."""
        self._chip("set_spod_node_status", self.place(phy), sdid, status)

    # -- pings between chips

    def ping_start(self, phy: int, task: int, addresses: list[str], shape: dict[str, int]) -> None:
        """Start pinging: task 0 within the node, 1 beyond it; ``shape``: size, count, interval, timeout, period."""
        operate = structs.HccsPingOperate()
        joined = ",".join(addresses).encode()
        if len(joined) > 1023:
            raise DriverError(f"{len(addresses)} addresses are longer than 1023 bytes")
        operate.dst_addr_list, operate.task_id = joined, task
        operate.pkt_size, operate.pkt_send_num = shape["size"], shape["count"]
        operate.pkt_interval, operate.timeout = shape["interval"], shape["timeout"]
        operate.task_interval = shape["period"]
        place = self.place(phy)
        self.library.call("dcmi_start_hccsping_mesh", place.card, place.device, 0, byref(operate))

    def ping_stop(self, phy: int, task: int) -> None:
        """Stop a ping task."""
        place = self.place(phy)
        self.library.call("dcmi_stop_hccsping_mesh", place.card, place.device, 0, task)

    def ping_state(self, phy: int, task: int) -> int:
        """Return a ping task's state: 0 stopped."""
        place, value = self.place(phy), c_uint32()
        self.library.call("dcmi_get_hccsping_mesh_state", place.card, place.device, 0, task, byref(value))
        return value.value

    def ping_results(self, phy: int, task: int) -> list[dict[str, Any]]:
        """Return the newest results of a task, one per destination; none when it is stopped."""
        place, info = self.place(phy), structs.HccsPingInfo()
        self.library.call("dcmi_get_hccsping_mesh_info", place.card, place.device, 0, task, byref(info))
        return [
            {
                "target": text(info.dst_addr[n]), "ok": info.suc_pkt_num[n], "lost": info.fail_pkt_num[n],
                "max": info.max_time[n], "min": info.min_time[n], "average": info.avg_time[n],
                "tp95": info.tp95_time[n], "replies": info.reply_stat_num[n], "total": info.ping_total_num[n],
            }
            for n in range(max(0, min(info.dest_num, MAX_PINGED)))
        ]  # fmt: skip

    # -- pings between EIDs (Ascend950)

    def ub_ping_start(self, phy: int, task: int, targets: dict[str, list[str]], shape: dict[str, int]) -> None:
        """Start pinging from each source EID to its destinations, as 32 hex digits; ``shape`` as with `ping_start`."""
        operates = (structs.UbPingOperate * len(targets))()
        for operate, (source, destinations) in zip(operates, sorted(targets.items()), strict=True):
            if not 1 <= len(destinations) <= MAX_PINGED:
                raise DriverError(f"{len(destinations)} destinations of an EID, 1 to {MAX_PINGED} are possible")
            operate.src_eid[:] = _eid(source)
            for row, destination in zip(operate.dst_eid_list, destinations, strict=False):
                row[:] = _eid(destination)
            operate.dst_num, operate.task_id = len(destinations), task
            operate.pkt_size, operate.pkt_send_num = shape["size"], shape["count"]
            operate.pkt_interval, operate.timeout = shape["interval"], shape["timeout"]
            operate.task_interval = shape["period"]
        self._chip("start_ub_ping_mesh", self.place(phy), len(targets), operates)

    def ub_ping_stop(self, phy: int, task: int) -> None:
        """Stop a ping task."""
        self._chip("stop_ub_ping_mesh", self.place(phy), task)

    def ub_ping_state(self, phy: int, task: int) -> int:
        """Return a ping task's state: 0 stopped."""
        return self._number("get_ub_ping_mesh_state", phy, c_uint32, task)

    def ub_ping_results(self, phy: int, task: int) -> list[dict[str, Any]]:
        """Return results as `ping_results` does, with the ``source`` of each."""
        infos, count = (structs.UbPingInfo * MAX_SOURCES)(), c_int()
        self._chip("get_ub_ping_mesh_info", self.place(phy), task, infos, MAX_SOURCES, byref(count))
        return [
            {
                "source": bytes(info.src_eid).hex(), "target": bytes(info.dst_eid_list[n]).hex(),
                "ok": info.suc_pkt_num[n], "lost": info.fail_pkt_num[n], "max": info.max_time[n],
                "min": info.min_time[n], "average": info.avg_time[n], "tp95": info.tp95_time[n],
                "replies": info.reply_stat_num[n], "total": info.ping_total_num[n],
            }
            for info in infos[: max(0, min(count.value, MAX_SOURCES))]
            for n in range(max(0, min(info.dest_num, MAX_PINGED)))
        ]  # fmt: skip

    # -- vNPUs

    def vnpus(self, phy: int) -> list[dict[str, Any]]:
        """The vNPUs of a chip: id, template, whether a container uses it, AI-core per cent and MB used."""
        total = structs.SocTotal()
        self._info(phy, 52, 1, total)
        found = []
        for number in total.vdev_id[: min(total.vdev_num, MAX_VDEVS)]:
            query = structs.VdevQuery()
            query.vdev_id = number
            try:
                self._info(phy, 52, 5, query)
            except DcmiError as error:
                if error.supported:
                    raise
                self._info(phy, 52, 0, query)
            info = query.query_info
            found.append({
                "id": number, "template": bytes(info.name).decode("ascii", "replace"),
                "used": bool(info.is_container_used), "aicore": float(info.computing.aic),
                "core_used": info.computing.vdev_aicore_utilization, "memory_total": info.computing.vdev_memory_total,
                "memory_free": info.computing.vdev_memory_free, "vgroup": _vgroup(info.vfg_id),
            })  # fmt: skip
        return found

    def create_vnpu(self, phy: int, template: str) -> tuple[int, int | None]:
        """Create one vNPU; returns its id and its vGroup."""
        if len(template.encode()) > 31:
            raise DriverError(f"template {template[:64]!r} is longer than 31 bytes")
        wanted, made = structs.CreateVdev(), structs.CreatedVdev()
        wanted.vdev_id = wanted.vfg_id = ANY_ID
        wanted.template_name = template.encode()
        place = self.place(phy)
        self.library.call("dcmi_create_vdevice", place.card, place.device, byref(wanted), byref(made))
        return int(made.vdev_id), _vgroup(made.vfg_id)

    def destroy_vnpu(self, phy: int, vdev: int) -> None:
        """Destroy a vNPU."""
        place = self.place(phy)
        self.library.call("dcmi_set_destroy_vdevice", place.card, place.device, vdev)

    # -- reset

    def reset(self, phy: int, channel: int = IN_BAND) -> None:
        """Start a reset of a chip and of those that reset with it."""
        self._chip("set_device_reset", self.place(phy), channel, v2="reset_device")

    def outband(self, phy: int) -> bool:
        """Return whether the out-of-band channel may be used."""
        return self._number("get_device_outband_channel_state", phy, c_int) == 1

    def pre_reset(self, phy: int) -> None:
        """Prepare an out-of-band reset."""
        self._chip("pre_reset_soc", self.place(phy), v2="pre_reset_device")

    def rescan(self, phy: int) -> None:
        """Find a chip again after an out-of-band reset."""
        self._chip("rescan_soc", self.place(phy), v2="rescan_device")


def _vgroup(number: int) -> int | None:
    return number if number < VGROUPS else None


def _eid(text: str) -> bytes:
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != 16:
        raise DriverError(f"{text[:64]!r} is not an EID: 32 hex digits")
    return raw
