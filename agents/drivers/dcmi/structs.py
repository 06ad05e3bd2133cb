"""Memory layouts of the driver's C interface (LP64, the same on x86-64 and aarch64; natural alignment).

Source: component/ascend-common/devmanager/dcmi/dcmi_interface_api.h and dcmi_interface_api_v2.h. Sizes are checked by a
test, and against a compiler through the stand-in library.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_double, c_float, c_int32, c_long, c_uint8, c_uint16, c_uint32, c_uint64, c_ulong

u8, u16, u32, u64, i32, f32, f64 = c_uint8, c_uint16, c_uint32, c_uint64, c_int32, c_float, c_double


class ChipInfo(ctypes.Structure):
    """dcmi_chip_info: type, name and version as text, AI cores."""

    _fields_ = [("chip_type", u8 * 32), ("chip_name", u8 * 32), ("chip_ver", u8 * 32), ("aicore_cnt", u32)]


class ChipInfoV2(ctypes.Structure):
    """dcmi_chip_info_v2: as before, with the name that npu-smi shows."""

    _fields_ = [*ChipInfo._fields_, ("npu_name", u8 * 32)]


class BoardInfo(ctypes.Structure):
    """dcmi_board_info."""

    _fields_ = [("board_id", u32), ("pcb_id", u32), ("bom_id", u32), ("slot_id", u32)]


class ElabelInfo(ctypes.Structure):
    """dcmi_elabel_info: the manufacturer's data on the card."""

    _fields_ = [
        ("product_name", c_char * 256), ("model", c_char * 256), ("manufacturer", c_char * 256),
        ("manufacturer_date", c_char * 256), ("serial_number", c_char * 256),
    ]  # fmt: skip


class PcieInfo(ctypes.Structure):
    """dcmi_pcie_info_all."""

    _fields_ = [
        ("venderid", u32), ("subvenderid", u32), ("deviceid", u32), ("subdeviceid", u32), ("domain", i32),
        ("bdf_busid", u32), ("bdf_deviceid", u32), ("bdf_funcid", u32), ("reserve", u8 * 32),
    ]  # fmt: skip


class DieId(ctypes.Structure):
    """dcmi_die_id: five words."""

    _fields_ = [("soc_die", u32 * 5)]


class EccInfo(ctypes.Structure):
    """dcmi_ecc_info: error counts and isolated pages."""

    _fields_ = [
        ("enable_flag", i32), ("single_bit_error_cnt", u32), ("double_bit_error_cnt", u32),
        ("total_single_bit_error_cnt", u32), ("total_double_bit_error_cnt", u32), ("single_bit_isolated_pages", u32),
        ("double_bit_isolated_pages", u32), ("single_bit_next_isolated_pages", u32),
        ("double_bit_next_isolated_pages", u32),
    ]  # fmt: skip


class HbmInfo(ctypes.Structure):
    """dcmi_hbm_info: MB, MHz, degrees Celsius, per cent."""

    _fields_ = [
        ("memory_size", u64), ("freq", u32), ("memory_usage", u64), ("temp", i32), ("bandwith_util_rate", u32),
    ]  # fmt: skip


class MemoryInfoV3(ctypes.Structure):
    """dcmi_get_memory_info_stru: MB, MHz, huge pages in KB and counts, per cent."""

    _fields_ = [
        ("memory_size", u64), ("memory_available", u64), ("freq", u32), ("hugepagesize", c_ulong),
        ("hugepages_total", c_ulong), ("hugepages_free", c_ulong), ("utiliza", u32), ("reserve", u8 * 60),
    ]  # fmt: skip


class MemoryInfo(ctypes.Structure):
    """dcmi_memory_info_stru: MB, MHz, per cent."""

    _fields_ = [("memory_size", u64), ("freq", u32), ("utiliza", u32)]


class MultiUtilization(ctypes.Structure):
    """dcmi_multi_utilization_info: cube, vector, AI core, overall, in per cent."""

    _fields_ = [
        ("aic_util", u32), ("aiv_util", u32), ("aicore_util", u32), ("npu_util", u32), ("reserved", u32 * 8),
    ]  # fmt: skip


class IpAddress(ctypes.Structure):
    """dcmi_ip_addr: 16 bytes, of which IPv4 uses four; ``ip_type`` 0 IPv4, 1 IPv6, 2 any."""

    _fields_ = [("address", u8 * 16), ("ip_type", i32)]


class ProcessMemory(ctypes.Structure):
    """dcmi_proc_mem_info: a process and its bytes of device memory."""

    _fields_ = [("proc_id", i32), ("proc_mem_usage", c_ulong)]


class PcieBandwidth(ctypes.Structure):
    """dcmi_pcie_link_bandwidth_info: ``profiling_time`` in ms is input; each triple is minimum, maximum, average."""

    _fields_ = [
        ("profiling_time", i32), ("tx_p_bw", u32 * 3), ("tx_np_bw", u32 * 3), ("tx_cpl_bw", u32 * 3),
        ("tx_np_lantency", u32 * 3), ("rx_p_bw", u32 * 3), ("rx_np_bw", u32 * 3), ("rx_cpl_bw", u32 * 3),
    ]  # fmt: skip


class HccsStatistic(ctypes.Structure):
    """dcmi_hccs_statistic_info, 32-bit counters of 16 ports."""

    _fields_ = [
        ("tx_cnt", u32 * 16), ("rx_cnt", u32 * 16), ("crc_err_cnt", u32 * 16), ("retry_cnt", u32 * 16),
        ("reserved", u32 * 64),
    ]  # fmt: skip


class HccsStatisticU64(ctypes.Structure):
    """dcmi_hccs_statistic_info_u64, 64-bit counters of 16 ports."""

    _fields_ = [
        ("tx_cnt", u64 * 16), ("rx_cnt", u64 * 16), ("crc_err_cnt", u64 * 16), ("retry_cnt", u64 * 16),
        ("reserved", u64 * 64),
    ]  # fmt: skip


class HccsBandwidth(ctypes.Structure):
    """dcmi_hccs_bandwidth_info: ``profiling_time`` in ms is input."""

    _fields_ = [
        ("profiling_time", i32), ("total_txbw", f64), ("total_rxbw", f64), ("tx_bandwidth", f64 * 16),
        ("rx_bandwidth", f64 * 16),
    ]  # fmt: skip


class SioCrc(ctypes.Structure):
    """dcmi_sio_crc_err_statistic_info."""

    _fields_ = [("tx_error_count", u16), ("rx_error_count", u16), ("reserved", u8 * 8)]


class SuperPod(ctypes.Structure):
    """dcmi_spod_info: where a chip sits in its super pod; 0xffffffff is unknown."""

    _fields_ = [
        ("sdid", u32), ("scale_type", u32), ("super_pod_id", u32), ("server_id", u32), ("chassis_id", u32),
        ("super_pod_type", u32), ("reserve", u32 * 6),
    ]  # fmt: skip


class BaseResource(ctypes.Structure):
    """dcmi_base_resource."""

    _fields_ = [
        ("token", u64), ("token_max", u64), ("task_timeout", u64), ("vfg_id", u32), ("vip_mode", u8),
        ("reserved", u8 * 31),
    ]  # fmt: skip


class ComputingResource(ctypes.Structure):
    """dcmi_computing_resource: cores, queues, MB of memory."""

    _fields_ = [
        ("aic", f32), ("aiv", f32), ("dsa", u16), ("rtsq", u16), ("acsq", u16), ("cdqm", u16), ("c_core", u16),
        ("ffts", u16), ("sdma", u16), ("pcie_dma", u16), ("memory_size", u64), ("event_id", u32), ("notify_id", u32),
        ("stream_id", u32), ("model_id", u32), ("topic_schedule_aicpu", u16), ("host_ctrl_cpu", u16),
        ("host_aicpu", u16), ("device_aicpu", u16), ("topic_ctrl_cpu_slot", u16), ("vdev_aicore_utilization", u32),
        ("vdev_memory_total", u64), ("vdev_memory_free", u64), ("reserved", u8 * 12),
    ]  # fmt: skip


class MediaResource(ctypes.Structure):
    """dcmi_media_resource."""

    _fields_ = [
        ("jpegd", f32), ("jpege", f32), ("vpc", f32), ("vdec", f32), ("pngd", f32), ("venc", f32),
        ("reserved", u8 * 32),
    ]  # fmt: skip


class CreateVdev(ctypes.Structure):
    """dcmi_create_vdev_res_stru: 0xFFFFFFFF lets the driver choose the ids."""

    _fields_ = [("vdev_id", u32), ("vfg_id", u32), ("template_name", c_char * 32), ("reserved", u8 * 64)]


class CreatedVdev(ctypes.Structure):
    """dcmi_create_vdev_out."""

    _fields_ = [
        ("vdev_id", u32), ("pcie_bus", u32), ("pcie_device", u32), ("pcie_func", u32), ("vfg_id", u32),
        ("reserved", u8 * 32),
    ]  # fmt: skip


class VdevQueryInfo(ctypes.Structure):
    """dcmi_vdev_query_info: one vNPU."""

    _fields_ = [
        ("name", c_char * 16), ("status", u32), ("is_container_used", u32), ("vfid", u32), ("vfg_id", u32),
        ("container_id", u64), ("base", BaseResource), ("computing", ComputingResource), ("media", MediaResource),
    ]  # fmt: skip


class VdevQuery(ctypes.Structure):
    """dcmi_vdev_query_stru: ``vdev_id`` is input."""

    _fields_ = [("vdev_id", u32), ("query_info", VdevQueryInfo)]


class SocFree(ctypes.Structure):
    """dcmi_soc_free_resource."""

    _fields_ = [
        ("vfg_num", u32), ("vfg_bitmap", u32), ("base", BaseResource), ("computing", ComputingResource),
        ("media", MediaResource),
    ]  # fmt: skip


class SocTotal(ctypes.Structure):
    """dcmi_soc_total_resource: also which vNPUs exist."""

    _fields_ = [
        ("vdev_num", u32), ("vdev_id", u32 * 32), ("vfg_num", u32), ("vfg_bitmap", u32), ("base", BaseResource),
        ("computing", ComputingResource), ("media", MediaResource),
    ]  # fmt: skip


class DmsFaultEvent(ctypes.Structure):
    """dcmi_dms_fault_event: severity 0 hint … 3 critical; assertion 0 recover, 1 occur, 2 once."""

    _fields_ = [
        ("event_id", u32), ("deviceid", u16), ("node_type", u8), ("node_id", u8), ("sub_node_type", u8),
        ("sub_node_id", u8), ("severity", u8), ("assertion", u8), ("event_serial_num", i32),
        ("notify_serial_num", i32), ("alarm_raised_time", u64), ("event_name", c_char * 256),
        ("additional_info", c_char * 32), ("resv", u8 * 32),
    ]  # fmt: skip


class FaultEvent(ctypes.Structure):
    """dcmi_event: ``type`` 0 is a DMS fault."""

    _fields_ = [("type", i32), ("dms", DmsFaultEvent)]


class EventFilter(ctypes.Structure):
    """dcmi_event_filter: bit 0 event id, bit 1 severity, bit 2 node type; zero lets everything through."""

    _fields_ = [("filter_flag", u64), ("event_id", u32), ("severity", u8), ("node_type", u8), ("resv", u8 * 32)]


class HccsPingOperate(ctypes.Structure):
    """dcmi_hccsping_mesh_operate."""

    _fields_ = [
        ("dst_addr_list", c_char * 1024), ("pkt_size", i32), ("pkt_send_num", i32), ("pkt_interval", i32),
        ("timeout", i32), ("task_interval", i32), ("task_id", i32),
    ]  # fmt: skip


class HccsPingInfo(ctypes.Structure):
    """dcmi_hccsping_mesh_info: of up to 48 destinations."""

    _fields_ = [
        ("dst_addr", (c_char * 16) * 48), ("suc_pkt_num", u32 * 48), ("fail_pkt_num", u32 * 48),
        ("max_time", c_long * 48), ("min_time", c_long * 48), ("avg_time", c_long * 48), ("tp95_time", c_long * 48),
        ("reply_stat_num", i32 * 48), ("ping_total_num", u64 * 48), ("dest_num", i32),
    ]  # fmt: skip


class UrmaEid(ctypes.Structure):
    """dcmi_urma_eid_info; the union in C aligns it to eight bytes."""

    _fields_ = [("eid", u64 * 2), ("eid_index", u32)]


class UbPingOperate(ctypes.Structure):
    """dcmi_ub_ping_mesh_operate."""

    _fields_ = [
        ("src_eid", u8 * 16), ("dst_eid_list", (u8 * 16) * 64), ("dst_num", i32), ("pkt_size", i32),
        ("pkt_send_num", i32), ("pkt_interval", i32), ("timeout", i32), ("task_interval", i32), ("task_id", i32),
    ]  # fmt: skip


class UbPingInfo(ctypes.Structure):
    """dcmi_ub_ping_mesh_info."""

    _fields_ = [
        ("src_eid", u8 * 16), ("dst_eid_list", (u8 * 16) * 64), ("suc_pkt_num", u32 * 48), ("fail_pkt_num", u32 * 48),
        ("max_time", c_long * 48), ("min_time", c_long * 48), ("avg_time", c_long * 48), ("tp95_time", c_long * 48),
        ("reply_stat_num", i32 * 48), ("ping_total_num", u64 * 48), ("dest_num", i32), ("occur_time", c_ulong),
    ]  # fmt: skip


class UbPort(ctypes.Structure):
    """dcmi_ub_port_info."""

    _fields_ = [("udie_id", i32), ("port_id", i32)]


class PortPackets(ctypes.Structure):
    """dcmi_port_pkt_stats_info: mode 1 is UBOE; 48 counters in the order of the exporter's UB metrics."""

    _fields_ = [("port_mode", i32), ("counters", u64 * 48), ("reserved", u64 * 16)]


class SwitchEvent(ctypes.Structure):
    """LqDcmiEvent of lingqu-dcmi.h."""

    _fields_ = [
        ("event_type", u32), ("sub_type", u32), ("peer_device", u16), ("peer_port", u16), ("chip", u16),
        ("port", u16), ("severity", u8), ("assertion", u8), ("res", u8 * 6), ("event_serial", u32),
        ("notify_serial", u32), ("raised", u64), ("additional", u8 * 40), ("information", c_char * 32),
    ]  # fmt: skip


class SwitchFilter(ctypes.Structure):
    """lq_dcmi_event_filter; zero lets everything through."""

    _fields_ = [("flag", u32), ("event_type", u32), ("event_id", u32), ("severity", u8), ("chip", u32)]


SIZES = {
    ChipInfo: 100, ChipInfoV2: 132, BoardInfo: 16, ElabelInfo: 1280, PcieInfo: 64, DieId: 20, EccInfo: 36, HbmInfo: 32,
    MemoryInfoV3: 112, MemoryInfo: 16, MultiUtilization: 48, IpAddress: 20, ProcessMemory: 16, PcieBandwidth: 88,
    HccsStatistic: 512, HccsStatisticU64: 1024, HccsBandwidth: 280, SioCrc: 12, SuperPod: 48, BaseResource: 64,
    ComputingResource: 96, MediaResource: 56, CreateVdev: 104, CreatedVdev: 52, VdevQueryInfo: 256, VdevQuery: 264,
    SocFree: 224, SocTotal: 360, DmsFaultEvent: 352, FaultEvent: 360, EventFilter: 48, HccsPingOperate: 1048,
    HccsPingInfo: 3272, UrmaEid: 24, UbPingOperate: 1068, UbPingInfo: 3552, UbPort: 8, PortPackets: 520,
    SwitchEvent: 112, SwitchFilter: 20,
}  # fmt: skip
"""Bytes of every structure as the C compiler lays it out."""
