"""The 199 metrics: name, group, labels, unit, meaning, products and where the value is found.

Source: component/npu-exporter/collector/metrics, docs/zh/scheduling/06_api/00_npu_exporter. Everything is a gauge.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

import msgspec

from belay.agents.drivers.dcmi.family import A1, A2, A3, A5, P310

PRODUCTS: Final[Mapping[str, str]] = {
    "A1": "Atlas training series (910)",
    "A2T": "Atlas A2 training series",
    "A3T": "Atlas A3 training series",
    "I300": "inference server with Atlas 300I cards",
    "I310P": "Atlas inference series (310P)",
    "A2I": "Atlas 800I A2 inference server",
    "A2BOX": "A200I A2 Box",
    "A350": "Atlas 350 card",
    "A850": "Atlas 850 series",
    "A950": "Atlas 950 SuperPoD",
}

_CARD: Final = ("id", "model_name", "vdie_id", "pcie_bus_info", "namespace", "pod_name", "container_name")
LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    "none": (),
    "card": _CARD,
    "card_name": ("id", "name", *_CARD[2:]),
    "card_port": (*_CARD, "udie", "port"),
    "process": (*_CARD, "process_id", "container_id"),
    "serial": (*_CARD, "serial_number"),
    "product": (*_CARD, "product_type"),
    "container": ("npuID", *_CARD[1:], "containerID", "containerName"),
    "pcie": (*_CARD, "pcie_bw_type"),
    "vnpu": ("id", "model_name", "v_dev_id", "aicore_count", *_CARD[4:], "is_virtual"),
    "version": ("exporterVersion",),
    "node": ("exporterVersion", "driverVersion"),
}
"""Label names of each set, in the order of the source; the text exposition sorts them."""

_ALL = tuple(PRODUCTS)
_TRAINING = ("A1", "A2T", "A3T", "A2I", "A2BOX")
_A5 = ("A350", "A850", "A950")
_MULTI = ("A2T", "A3T", "A2I", "A2BOX", *_A5)
_HBM_FAMILIES = frozenset({A1, A2, A3, A5})
_HCCS_FAMILIES = frozenset({A2, A3})
CHECKED_GROUPS: Final = frozenset({"npu", "utilization", "network", "optical"})
"""Groups whose samples are left out when the value marks a failed reading (-1, 4294967295)."""


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric.

    ``families`` are the chip families that expose it (empty: those that the group supports); ``key`` is what the tool
    or the driver calls it; ``telegraf`` says at which level it is sent there: node, device, vdev, or not at all.
    """

    name: str
    group: str
    labels: str
    unit: str
    meaning: str
    products: tuple[str, ...]
    families: frozenset[str] = frozenset()
    key: str = ""
    timestamped: bool = True
    checked: bool = False
    telegraf: str = "device"

    @property
    def whole(self) -> bool:
        """Whether Telegraf is given a whole number (``8i``) where the source has one; other values are floats.

        Source: the types of component/npu-exporter/collector/metrics (UpdateTelegraf)."""
        if self.group in ("utilization", "network", "optical"):
            return self.name == "npu_chip_info_optical_index_num"
        if self.group == "npu":
            return self.name.startswith("machine_") or self.name == "npu_chip_info_process_info_num"
        return self.unit != "GB/s" and self.name != "npu_chip_info_hbm_utilization"

    @property
    def help(self) -> str:
        """The HELP line's text."""
        return self.meaning if self.unit in ("constant 1", "enum", "number") else f"{self.meaning}; unit: {self.unit}"


def _row(
    name: str, group: str, unit: str, meaning: str, products: tuple[str, ...] = _ALL, labels: str = "card", *,
    families: frozenset[str] = frozenset(), key: str = "", timestamped: bool = True, telegraf: str = "device",
    checked: bool | None = None,
) -> Metric:  # fmt: skip
    return Metric(
        name=name, group=group, labels=labels, unit=unit, meaning=meaning, products=products, families=families,
        key=key, timestamped=timestamped, telegraf=telegraf,
        checked=group in CHECKED_GROUPS if checked is None else checked,
    )  # fmt: skip


def _node() -> list[Metric]:
    rows = [
        _row("npu_exporter_version_info", "version", "constant 1", "exporter build version carried in a label",
             labels="version", timestamped=False, telegraf="node"),
        _row("node_base_info", "nodeBase", "constant 1", "exporter and driver version of the node", labels="node",
             telegraf="node"),
        _row("machine_npu_nums", "npu", "count",
             "NPUs on the node; on 310P every active vNPU counts instead of its chip",
             labels="none", timestamped=False, telegraf="node"),
        _row("machine_card_nums", "npu", "count", "cards (modules) on the node", (*_ALL[:7],), "none",
             families=frozenset({P310, A1, A2, A3}), timestamped=False, telegraf="node"),
    ]  # fmt: skip
    for state, meaning in (
        ("healthy", "NPUs with health 0"),
        ("unhealthy", "NPUs with health not 0"),
        ("unknown", "NPUs whose health could not be read or is not cached yet"),
    ):
        text = f"{meaning}; the three numbers add up to machine_npu_nums"
        rows.append(
            _row(f"machine_{state}_npu_nums", "npu", "count", text, labels="none", timestamped=False, telegraf="node")
        )
    return [msgspec.structs.replace(row, checked=False) for row in rows]


def _npu() -> list[Metric]:
    name = "npu_chip_info_"
    rows = [
        _row(name + "temperature", "npu", "degC", "chip temperature"),
        _row(name + "power", "npu", "W", "chip power; on 310P the power of the whole card"),
        _row(name + "voltage", "npu", "V", "chip voltage"),
        _row(name + "aicore_current_freq", "npu", "MHz", "current AI core clock"),
        _row(name + "health_status", "npu", "enum", "1 healthy, 0 unhealthy, -1 call failed", checked=False),
        _row(name + "name", "npu", "constant 1", "chip model; the label called name replaces model_name",
             labels="card_name"),
        _row(name + "network_status", "npu", "enum",
             "1 reachable, 0 not, -1 call failed; nothing for non training cards", _TRAINING, checked=False),
        _row(name + "process_info_num", "npu", "count", "driver processes on the chip (0 when the call fails)",
             checked=False),
        _row(name + "process_info", "npu", "MB",
             "memory of one process; pod labels only when the pid belongs to a known container", labels="process",
             checked=False),
        _row(name + "serial_number", "npu", "constant 1", "card serial number in a label, NA when it cannot be read",
             labels="serial"),
        _row(name + "product_type", "npu", "constant 1", "product name in a label", ("I310P",), "product",
             families=frozenset({P310})),
        _row(name + "error_code", "npu", "number", "first error code as decimal number; absent without errors"),
    ]  # fmt: skip
    for number in range(1, 10):
        text = f"error code number {number + 1}; absent when there are fewer"
        rows.append(_row(f"{name}error_code_{number}", "npu", "number", text))
    rows.append(
        _row("npu_container_info", "npu", "constant 1",
             "which container holds the chip; only when exactly one container does", labels="container",
             telegraf="", checked=False)
    )  # fmt: skip
    return rows


def _memory_and_use() -> list[Metric]:
    name, contained = "npu_chip_info_", (*_TRAINING, *_A5)
    use = frozenset({A2, A3, A5})
    rows = [
        _row("container_npu_total_memory", "hbm|ddr", "MB",
             "memory of a chip held by exactly one container: HBM on the 910 family, DDR elsewhere; never for vNPUs",
             contained, telegraf=""),
        _row("container_npu_used_memory", "hbm|ddr", "MB", "used part of the same", contained, telegraf=""),
        _row(name + "utilization", "utilization", "%", "AI core utilisation", key="core"),
        _row(name + "vector_utilization", "utilization", "%", "vector core utilisation",
             ("A2T", "A3T", "I300", "I310P", "A2I", "A2BOX", *_A5), key="vector",
             families=frozenset({A2, A3, A5, P310, "Ascend310", "Ascend310B"})),
        _row(name + "cube_utilization", "utilization", "%",
             "cube core utilisation; only from the multi utilisation call", _MULTI, key="cube", families=use),
        _row(name + "overall_utilization", "utilization", "%", "utilisation of the whole NPU", _MULTI, key="overall",
             families=use),
        _row("container_npu_utilization", "utilization", "%",
             "AI core utilisation of a chip held by exactly one container; never for vNPUs", key="core", telegraf=""),
        _row("vnpu_pod_aicore_utilization", "vnpu", "%",
             "AI core utilisation of a vNPU used by exactly one container", ("I310P",), "vnpu", telegraf="vdev"),
        _row("vnpu_pod_total_memory", "vnpu", "KB", "memory of that vNPU", ("I310P",), "vnpu", telegraf="vdev"),
        _row("vnpu_pod_used_memory", "vnpu", "KB", "used memory of that vNPU", ("I310P",), "vnpu", telegraf="vdev"),
        _row(name + "total_memory", "ddr", "MB", "DDR size", ("A1", "I300", "I310P"), key="total"),
        _row(name + "used_memory", "ddr", "MB", "DDR size minus available", ("A1", "I300", "I310P"), key="used"),
    ]  # fmt: skip
    for suffix, unit, meaning, key in (
        ("used_memory", "MB", "used on-chip memory", "used"),
        ("total_memory", "MB", "on-chip memory size", "total"),
        ("utilization", "%", "on-chip memory utilisation", ""),
        ("temperature", "degC", "on-chip memory temperature", "temperature"),
        ("bandwidth_utilization", "%", "on-chip memory bandwidth utilisation", "bandwidth"),
        ("ecc_enable_flag", "enum", "1 if ECC is on, else 0", "enable_flag"),
        ("ecc_single_bit_error_cnt", "count", "current single-bit errors", "single_bit_error_cnt"),
        ("ecc_double_bit_error_cnt", "count", "current multi-bit errors", "double_bit_error_cnt"),
        ("ecc_total_single_bit_error_cnt", "count", "lifetime single-bit errors", "total_single_bit_error_cnt"),
        ("ecc_total_double_bit_error_cnt", "count", "lifetime multi-bit errors", "total_double_bit_error_cnt"),
        ("ecc_single_bit_isolated_pages_cnt", "count", "pages isolated for single-bit errors",
         "single_bit_isolated_pages"),
        ("ecc_double_bit_isolated_pages_cnt", "count", "pages isolated for multi-bit errors",
         "double_bit_isolated_pages"),
    ):  # fmt: skip
        rows.append(
            _row(f"{name}hbm_{suffix}", "hbm", unit, meaning, contained, families=_HBM_FAMILIES, key=key,
                 checked=suffix == "utilization")
        )  # fmt: skip
    return rows


def _links() -> list[Metric]:
    name, both = "npu_chip_info_", "card|card_port"
    rows = [
        _row(name + "bandwidth_tx", "network", "MB/s", "live transmit rate of the NPU network port",
             (*_TRAINING, *_A5), both),
        _row(name + "bandwidth_rx", "network", "MB/s", "live receive rate", (*_TRAINING, *_A5), both),
        _row(name + "link_status", "network", "enum", "1 up, 0 not up, -1 tool failed", (*_TRAINING, *_A5), both,
             checked=False),
        _row("npu_chip_link_speed", "network", "Mb/s", "nominal port speed", _TRAINING),
        _row("npu_chip_link_up_num", "network", "count", "times the link came up", _TRAINING),
        _row(name + "link_speed", "network", "G", "port speed on Ascend 950", _A5, "card_port",
             families=frozenset({A5})),
    ]  # fmt: skip
    for number in range(8):
        for way, key, meaning in (
            ("tx_cnt", "tx", "flits sent on link"), ("rx_cnt", "rx", "flits received on link"),
            ("crc_err_cnt", "crc", "CRC errors on link"),
        ):  # fmt: skip
            rows.append(
                _row(f"{name}hccs_statistic_info_{way}_{number}", "hccs", "flit",
                     f"{meaning} {number}; -1 when collection fails", ("A2T", "A3T"), families=_HCCS_FAMILIES, key=key)
            )  # fmt: skip
    for number in range(8):
        for way, meaning in (("tx", "transmit"), ("rx", "receive")):
            rows.append(
                _row(f"{name}hccs_bandwidth_info_{way}_{number}", "hccs", "GB/s",
                     f"{meaning} bandwidth of link {number}; -1 when collection fails", ("A2T", "A3T"),
                     families=_HCCS_FAMILIES, key=way)
            )  # fmt: skip
    for suffix, unit, meaning in (
        ("profiling_time", "ms", "sampling time, flag hccsBWProfilingTime"),
        ("total_tx", "GB/s", "sum of transmit bandwidth"),
        ("total_rx", "GB/s", "sum of receive bandwidth"),
    ):
        rows.append(
            _row(f"{name}hccs_bandwidth_info_{suffix}", "hccs", unit, meaning, ("A2T", "A3T"),
                 families=_HCCS_FAMILIES, key=suffix)
        )  # fmt: skip
    for way, meaning in (
        ("rx_p", "remote writes arriving at the NPU"), ("rx_np", "remote reads arriving at the NPU"),
        ("rx_cpl", "completions received for own reads"), ("tx_p", "writes to the remote side"),
        ("tx_np", "reads from the remote side"), ("tx_cpl", "completions sent for remote reads"),
    ):  # fmt: skip
        rows.append(
            _row(f"{name}pcie_{way}_bw", "pcie", "MB/ms", meaning, ("A2T", "A2I", "A2BOX", "A350"), "pcie",
                 key=f"{way}_bw")
        )  # fmt: skip
    for metric, key, meaning in _ROCE:
        rows.append(_row(metric, "roce", "count", meaning, _TRAINING, key=key))
    for way, meaning in (("tx", "bad packets sent between the dies"), ("rx", "bad packets received between the dies")):
        rows.append(
            _row(f"{name}sio_crc_{way}_err_cnt", "sio", "count", meaning, ("A3T", *_A5),
                 families=frozenset({A3, A5}), key=way)
        )  # fmt: skip
    return rows


def _optical() -> list[Metric]:
    rows = [
        _row("npu_chip_optical_state", "optical", "enum", "1 module present, 0 absent; nothing when unknown",
             _TRAINING, key="present"),
        _row("npu_chip_optical_vcc", "optical", "mV", "module supply voltage", _TRAINING, key="Vcc"),
        _row("npu_chip_optical_temp", "optical", "degC", "module temperature", _TRAINING, key="temperature"),
    ]  # fmt: skip
    ways = (("tx", "Tx"), ("rx", "Rx"))
    for way, word in ways:
        for lane in range(4):
            rows.append(
                _row(f"npu_chip_optical_{way}_power_{lane}", "optical", "mW", f"{way} power of lane {lane}", _TRAINING,
                     key=f"{word}_Power{lane}")
            )  # fmt: skip
    rows.append(
        _row("npu_chip_info_optical_index_num", "optical", "count", "optical lanes behind the port", ("A850",),
             "card_port", families=frozenset({A5}), key="optical_index", checked=False)
    )  # fmt: skip
    for way, word in ways:
        for lane in range(4):
            # the tool names dBm where MindCluster's documents name mW
            rows.append(
                _row(f"npu_chip_info_optical_{way}_power_{lane}", "optical", "mW", f"{way} power of lane {lane}",
                     ("A850",), "card_port", families=frozenset({A5}), key=f"{word}Power Lane{lane}(dBm)")
            )  # fmt: skip
    return rows


def _ub() -> list[Metric]:
    return [
        _row(f"npu_chip_info_{key}", "ub", "count", meaning, _A5, "card_port", families=frozenset({A5}), key=key)
        for key, meaning in _UB
    ]


_UB: Final = (
    ("ub_ipv4_pkt_cnt_rx", "IPv4 UB packets received"),
    ("ub_ipv6_pkt_cnt_rx", "IPv6 UB packets received"),
    ("unic_ipv4_pkt_cnt_rx", "IPv4 UNIC packets received"),
    ("unic_ipv6_pkt_cnt_rx", "IPv6 UNIC packets received"),
    ("ub_compact_pkt_cnt_rx", "CFG6 packets received"),
    ("ub_umoc_ctph_cnt_rx", "CFG7 clan packets received"),
    ("ub_umoc_ntph_cnt_rx", "CFG7 non-clan packets received"),
    ("ub_mem_pkt_cnt_rx", "UB memory packets received"),
    ("unknown_pkt_cnt_rx", "packets of unknown kind received"),
    ("drop_ind_cnt_rx", "packets received with the drop indication"),
    ("err_ind_cnt_rx", "error packets received"),
    ("to_host_pkt_cnt_rx", "packets routed to the host"),
    ("to_imp_pkt_cnt_rx", "enumeration and management packets delivered"),
    ("to_mar_pkt_cnt_rx", "UB memory packets delivered"),
    ("to_link_pkt_cnt_rx", "packets looped back to the same port"),
    ("to_noc_pkt_cnt_rx", "P2P packets after routing"),
    ("route_err_cnt_rx", "routing lookup errors"),
    ("out_err_cnt_rx", "bad packets after validation, receive"),
    ("length_err_cnt_rx", "length errors, receive"),
    ("rx_busi_flit_num", "service flits from the MAC"),
    ("rx_send_ack_flit", "ACK flits given to the peer, receive side"),
    ("ub_ipv4_pkt_cnt_tx", "IPv4 UB packets sent"),
    ("ub_ipv6_pkt_cnt_tx", "IPv6 UB packets sent"),
    ("unic_ipv4_pkt_cnt_tx", "IPv4 UNIC packets sent"),
    ("unic_ipv6_pkt_cnt_tx", "IPv6 UNIC packets sent"),
    ("ub_compact_pkt_cnt_tx", "CFG6 packets sent"),
    ("ub_umoc_ctph_cnt_tx", "CFG7 clan packets sent"),
    ("ub_umoc_ntph_cnt_tx", "CFG7 non-clan packets sent"),
    ("ub_mem_pkt_cnt_tx", "UB memory packets sent"),
    ("unknown_pkt_cnt_tx", "packets of unknown kind sent"),
    ("drop_ind_cnt_tx", "packets sent with the drop indication"),
    ("err_ind_cnt_tx", "error packets sent"),
    ("lpbk_ind_cnt_tx", "packets looped back at the network layer"),
    ("out_err_cnt_tx", "bad packets after validation, send"),
    ("length_err_cnt_tx", "length errors, send"),
    ("tx_busi_flit_num", "service flits sent"),
    ("tx_recv_ack_flit", "ACK flits, send side"),
    ("retry_req_sum", "retransmission requests started"),
    ("retry_ack_sum", "retransmissions answered"),
    ("crc_error_sum", "CRC check errors"),
    ("core_mib_rxpausepkts", "pause frames received"),
    ("core_mib_txpausepkts", "pause frames sent"),
    ("core_mib_rxpfcpkts", "PFC frames received"),
    ("core_mib_txpfcpkts", "PFC frames sent"),
    ("core_mib_rxbadpkts", "bad packets received"),
    ("core_mib_txbadpkts", "bad packets sent"),
    ("core_mib_rxbadoctets", "bytes in bad packets received"),
    ("core_mib_txbadoctets", "bytes in bad packets sent"),
)
"""Counters of one UB port in the driver's order; the names are those that `hccn_tool -g -stat` prints."""

_ROCE: Final = (
    ("npu_chip_mac_rx_pause_num", "mac_rx_mac_pause_num", "MAC pause frames received"),
    ("npu_chip_mac_tx_pause_num", "mac_tx_mac_pause_num", "MAC pause frames sent"),
    ("npu_chip_mac_rx_pfc_pkt_num", "mac_rx_pfc_pkt_num", "PFC frames received"),
    ("npu_chip_mac_tx_pfc_pkt_num", "mac_tx_pfc_pkt_num", "PFC frames sent"),
    ("npu_chip_mac_rx_bad_pkt_num", "mac_rx_bad_pkt_num", "bad packets received"),
    ("npu_chip_mac_tx_bad_pkt_num", "mac_tx_bad_pkt_num", "bad packets sent"),
    ("npu_chip_mac_rx_bad_oct_num", "mac_rx_bad_oct_num", "bytes in bad packets received"),
    ("npu_chip_mac_tx_bad_oct_num", "mac_tx_bad_oct_num", "bytes in bad packets sent"),
    ("npu_chip_info_rx_fcs_num", "mac_rx_fcs_err_pkt_num", "FCS errors received"),
    ("npu_chip_info_rx_ecn_num", "roce_ecn_db_num", "ECN marks received"),
    ("npu_chip_roce_rx_all_pkt_num", "roce_rx_all_pkt_num", "RoCE packets received"),
    ("npu_chip_roce_tx_all_pkt_num", "roce_tx_all_pkt_num", "RoCE packets sent"),
    ("npu_chip_roce_rx_err_pkt_num", "roce_rx_err_pkt_num", "bad RoCE packets received"),
    ("npu_chip_roce_tx_err_pkt_num", "roce_tx_err_pkt_num", "bad RoCE packets sent"),
    ("npu_chip_roce_rx_cnp_pkt_num", "roce_rx_cnp_pkt_num", "CNP packets received"),
    ("npu_chip_roce_tx_cnp_pkt_num", "roce_tx_cnp_pkt_num", "CNP packets sent"),
    ("npu_chip_roce_new_pkt_rty_num", "roce_new_pkt_rty_num", "retransmissions"),
    ("npu_chip_roce_unexpected_ack_num", "roce_unexpected_ack_num", "unexpected ACKs (dropped)"),
    ("npu_chip_roce_out_of_order_num", "roce_out_of_order_num", "packets beyond or repeating the expected PSN"),
    ("npu_chip_roce_verification_err_num", "roce_verification_err_num", "packets failing field checks"),
    ("npu_chip_roce_qp_status_err_num", "roce_qp_status_err_num", "packets for QPs in a bad state"),
)
"""Name, the tool's key, meaning."""

UB_KEYS: Final = tuple(key for key, _ in _UB)
UBOE_KEYS: Final = frozenset(key for key in UB_KEYS if key.startswith("core_mib_"))
"""Counters that only a port in UBOE mode has."""

METRICS: Final = (*_node(), *_npu(), *_memory_and_use(), *_links(), *_optical(), *_ub())
BY_NAME: Final[Mapping[str, Metric]] = {metric.name: metric for metric in METRICS}


@functools.cache  # asked for each chip each second: looking through all rows was two fifths of an exporter's steps
def of_group(group: str) -> tuple[Metric, ...]:
    """The metrics of one collection group."""
    return tuple(metric for metric in METRICS if group in metric.group.split("|"))
