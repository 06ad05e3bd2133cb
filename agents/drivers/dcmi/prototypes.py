"""Every function of `libdcmi.so` that agents may call, with the types of its arguments; all return int.

Source: component/ascend-common/devmanager/dcmi/dcmi_interface_api.h (v1: card and device) and dcmi_interface_api_v2.h
(v2: one device id). ``library.Library`` binds what a given library has; the others answer SYMBOL_MISSING.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_uint32, c_void_p
from typing import Any

from belay.agents.drivers.dcmi import structs as s

N, U = c_int, c_uint32
PI, PU, S, V = POINTER(c_int), POINTER(c_uint32), c_char_p, c_void_p
U8P = POINTER(ctypes.c_uint8)
FAULT_CALLBACK = ctypes.CFUNCTYPE(None, POINTER(s.FaultEvent))
SWITCH_CALLBACK = ctypes.CFUNCTYPE(None, POINTER(s.SwitchEvent))


def _p(structure: type[ctypes.Structure]) -> Any:
    return POINTER(structure)


# what follows the ids of the chip in both generations
_CHIP: dict[str, tuple[Any, ...]] = {
    "get_device_type": (PI,),
    "get_device_health": (PU,),
    "get_device_temperature": (PI,),
    "get_device_voltage": (PU,),
    "get_device_power_info": (PI,),
    "get_device_ecc_info": (N, _p(s.EccInfo)),
    "get_device_frequency": (N, PU),
    "get_device_hbm_info": (_p(s.HbmInfo),),
    "get_device_utilization_rate": (N, PU),
    "get_device_multi_utilization_rate": (_p(s.MultiUtilization),),
    "get_device_multi_utilization_rate_period": (_p(s.MultiUtilization), N),
    "get_device_info": (N, U, V, PU),
    "get_device_network_health": (PI,),
    "get_device_outband_channel_state": (PI,),
    "get_device_boot_status": (PI,),
    "get_device_board_info": (_p(s.BoardInfo),),
    "get_pcie_link_bandwidth_info": (_p(s.PcieBandwidth),),
    "get_urma_device_cnt": (PU,),
    "get_eid_list_by_urma_dev_index": (U, _p(s.UrmaEid), PU),
    "start_ub_ping_mesh": (N, _p(s.UbPingOperate)),
    "stop_ub_ping_mesh": (N,),
    "get_ub_ping_mesh_info": (N, _p(s.UbPingInfo), N, PI),
    "get_ub_ping_mesh_state": (N, PU),
}

V1: dict[str, tuple[Any, ...]] = {
    "dcmi_init": (),
    "dcmi_get_card_list": (PI, PI, N),
    "dcmi_get_device_num_in_card": (N, PI),
    "dcmi_get_device_id_in_card": (N, PI, PI, PI),
    "dcmi_get_device_logic_id": (PI, N, N),
    "dcmi_get_device_phyid_from_logicid": (U, PU),
    "dcmi_get_device_logicid_from_phyid": (U, PU),
    "dcmi_get_card_id_device_id_from_logicid": (PI, PI, U),
    "dcmi_get_card_id_device_id_from_phyid": (PI, PI, U),
    "dcmi_get_device_chip_info": (N, N, _p(s.ChipInfo)),
    "dcmi_get_device_chip_info_v2": (N, N, _p(s.ChipInfoV2)),
    "dcmi_get_product_type": (N, N, S, N),
    "dcmi_get_mainboard_id": (N, N, PU),
    "dcmi_get_card_elabel_v2": (N, _p(s.ElabelInfo)),
    "dcmi_get_dcmi_version": (S, N),
    "dcmi_get_device_errorcode_v2": (N, N, PI, PU, U),
    "dcmi_get_device_errorcode": (N, N, PI, PU, PI),
    "dcmi_subscribe_fault_event": (N, N, s.EventFilter, FAULT_CALLBACK),
    "dcmi_mcu_get_power_info": (N, PI),
    "dcmi_get_device_memory_info_v3": (N, N, _p(s.MemoryInfoV3)),
    "dcmi_get_memory_info": (N, N, _p(s.MemoryInfo)),
    "dcmi_get_device_resource_info": (N, N, _p(s.ProcessMemory), PI),
    "dcmi_get_device_pcie_info_v2": (N, N, _p(s.PcieInfo)),
    "dcmi_get_device_ip": (N, N, N, N, _p(s.IpAddress), _p(s.IpAddress)),
    "dcmi_get_device_die_v2": (N, N, N, _p(s.DieId)),
    "dcmi_create_vdevice": (N, N, _p(s.CreateVdev), _p(s.CreatedVdev)),
    "dcmi_set_destroy_vdevice": (N, N, U),
    "dcmi_set_device_reset": (N, N, N),
    "dcmi_pre_reset_soc": (N, N),
    "dcmi_rescan_soc": (N, N),
    "dcmi_get_netdev_brother_device": (N, N, PI),
    "dcmi_get_npu_work_mode": (N, U8P),
    "dcmi_get_affinity_cpu_info_by_device_id": (N, N, S, PI),
    "dcmi_get_hccs_link_bandwidth_info": (N, N, _p(s.HccsBandwidth)),
    "dcmi_start_hccsping_mesh": (N, N, N, _p(s.HccsPingOperate)),
    "dcmi_stop_hccsping_mesh": (N, N, N, U),
    "dcmi_get_hccsping_mesh_info": (N, N, N, U, _p(s.HccsPingInfo)),
    "dcmi_get_hccsping_mesh_state": (N, N, N, U, PU),
    "dcmi_get_spod_node_status": (N, N, U, PU),
    "dcmi_set_spod_node_status": (N, N, U, U),
    "dcmi_get_multi_die_policy": (PI,),
    "dcmi_set_multi_die_policy": (N,),
    **{f"dcmi_{name}": (N, N, *rest) for name, rest in _CHIP.items()},
}

V2: dict[str, tuple[Any, ...]] = {
    "dcmiv2_init": (),
    "dcmiv2_get_device_list": (PI, PI, N),
    "dcmiv2_get_all_device_count": (PI,),
    "dcmiv2_get_device_pcie_info": (N, _p(s.PcieInfo)),
    "dcmiv2_get_device_chip_info": (N, _p(s.ChipInfoV2)),
    "dcmiv2_get_device_error_code_list": (N, PI, PU, U),
    "dcmiv2_get_chip_phy_id_by_dev_id": (U, PU),
    "dcmiv2_get_dev_id_by_chip_phy_id": (U, PU),
    "dcmiv2_reset_device": (N, N),
    "dcmiv2_pre_reset_device": (N,),
    "dcmiv2_rescan_device": (N,),
    "dcmiv2_subscribe_fault_event": (N, s.EventFilter, FAULT_CALLBACK),
    "dcmiv2_get_device_die_id": (N, N, _p(s.DieId)),
    "dcmiv2_get_device_proc_mem_info": (N, _p(s.ProcessMemory), PI),
    "dcmiv2_get_dcmi_version": (S, N),
    "dcmiv2_get_mainboard_id": (N, PU),
    "dcmiv2_get_affinity_cpu_info_by_dev_id": (N, S, PI),
    "dcmiv2_get_device_elabel_info": (N, _p(s.ElabelInfo)),
    "dcmiv2_get_port_pkt_stats_info": (N, _p(s.UbPort), _p(s.PortPackets)),
    **{f"dcmiv2_{name}": (N, *rest) for name, rest in _CHIP.items()},
}

SWITCH: dict[str, tuple[Any, ...]] = {
    "lq_dcmi_init": (),
    "lq_dcmi_subscribe_fault_event": (s.SwitchFilter, SWITCH_CALLBACK),
    "lq_dcmi_get_fault_info": (U, PU, _p(s.SwitchEvent)),
}
"""The bus switch's own library, `liblingqu-dcmi.so`."""

ALL = {**V1, **V2, **SWITCH}
