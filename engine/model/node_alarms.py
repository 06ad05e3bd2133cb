"""What the alarm codes of a server's BMC and of LingQu switches say."""

from __future__ import annotations

from typing import Final

from belay.engine.model.chip_events import Meaning


def alarm_of(code: str) -> Meaning | None:
    """The meaning of a BMC's alarm, eight hexadecimal digits; None for others."""
    row = _BMC.get(code.upper())
    return Meaning(row[0], row[1], row[2] == "cause", 85 if row[2] == "cause" else 30, row[3]) if row else None


def switch_alarm_of(number: str, peer: str = "") -> Meaning | None:
    """The meaning of a switch's alarm, eight hexadecimal digits; ``peer`` is who is at the other end: cpu, npu, L2."""
    row = _SWITCH.get(number.lower())
    if row is None:
        return None
    ends = {"cpu": ("towards a CPU", "（对端 CPU）"), "npu": ("towards a chip", "（对端 NPU）"),
            "l2": ("towards a switch of the second layer", "（对端二层交换机）")}  # fmt: skip
    end = ends.get(peer.lower(), ("", ""))
    return Meaning(f"{row[0]} {end[0]}".strip(), row[1] + end[1], row[2], 75 if row[2] else 30, "switch")


_BMC: Final[dict[str, tuple[str, str, str, str]]] = {
    "0000001D": ("CPU: an error that cannot be corrected", "CPU 出现不可纠正错误", "cause", "server"),
    "00000003": ("CPU: too hot, it will be throttled", "CPU 过热，将降频", "symptom", "heat"),
    "0000001F": ("CPU: a core is isolated", "CPU 核被隔离", "symptom", "server"),
    "00000021": ("CPU: it is isolated", "CPU 被隔离", "cause", "server"),
    "00000089": ("CPU: the voltage of its memory cannot be read", "CPU 内存电压无法读取", "symptom", "server"),
    "00000099": ("CPU: its voltage (HVCC) is too low", "CPU HVCC 电压过低", "cause", "power"),
    "000000D3": ("CPU: a way of its cache is isolated", "CPU 缓存路被隔离", "symptom", "server"),
    "01000017": ("memory: an uncorrectable error could not be isolated", "内存不可纠正错误隔离失败", "cause", "server"),
    "01000057": ("memory: it could not be initialised", "内存初始化错误", "cause", "server"),
    "01000059": ("memory: its configuration is wrong", "内存配置错误", "symptom", "server"),
    "02000007": ("disk: it failed", "硬盘故障", "cause", "disk"),
    "02000009": ("disk: it is about to fail", "硬盘预故障", "symptom", "disk"),
    "0200000B": ("disk: its RAID group failed", "硬盘 RAID 组失效", "cause", "disk"),
    "02000013": ("disk: MCE or AER error", "硬盘 MCE/AER 错误", "cause", "disk"),
    "02000017": ("disk: its temperature cannot be read", "硬盘温度无法读取", "symptom", "disk"),
    "0200001F": ("disk: hard failure of the correctable kind", "硬盘 CE 类硬失效", "symptom", "disk"),
    "02000027": ("disk: its state is abnormal", "硬盘状态异常", "symptom", "disk"),
    "02000029": ("disk: it carries a configuration of another server", "硬盘存在外部配置", "symptom", "disk"),
    "0200002B": ("disk: its light cannot be found", "硬盘定位灯识别失败", "symptom", "disk"),
    "0200002D": ("disk: it is lost", "硬盘丢失", "cause", "disk"),
    "05000001": ("disk backplane: its supply failed", "硬盘背板电源异常", "cause", "power"),
    "05000005": ("disk backplane: its voltage is too low", "硬盘背板电压过低", "symptom", "power"),
    "05000009": ("disk backplane: its voltage cannot be read", "硬盘背板电压无法读取", "symptom", "disk"),
    "0500000D": ("disk backplane: its temperature cannot be read", "硬盘背板温度无法读取", "symptom", "disk"),
    "06000025": ("RAID card: its controller does not answer", "RAID 卡控制器通信丢失", "cause", "disk"),
    "08000001": ("PCIe card: MCE or AER error", "PCIe 卡 MCE/AER 错误", "cause", "card"),
    "08000003": ("PCIe card: too hot", "PCIe 卡温度过高", "symptom", "heat"),
    "08000045": ("PCIe card: its EEPROM failed", "PCIe 卡 EEPROM 故障", "symptom", "card"),
    "0800004B": ("RAID card: it failed", "RAID 卡故障", "cause", "disk"),
    "0800005D": ("PCIe card: its self-test failed", "PCIe 卡自检失败", "cause", "card"),
    "0800006F": ("PCIe card: the link is narrower than it should be", "PCIe 卡降带宽", "symptom", "card"),
    "08000095": ("RAID card: its controller does not answer", "RAID 标卡控制器通信丢失", "cause", "disk"),
    "080000C9": ("PCIe card: its CPU failed", "PCIe 卡 CPU 严重异常", "cause", "card"),
    "080000CF": ("PCIe card: its network is abnormal", "PCIe 卡网络一般异常", "symptom", "link"),
    "080000D5": ("PCIe card: its start went wrong (minor)", "PCIe 卡启动一般异常", "symptom", "card"),
    "080000D7": ("PCIe card: it did not start", "PCIe 卡启动严重异常", "cause", "card"),
    "080000DB": ("PCIe card: its microcontroller failed", "PCIe 卡 MCU 严重异常", "cause", "card"),
    "080000DF": ("PCIe card: its cable is abnormal", "PCIe 卡线缆异常", "symptom", "card"),
    "080000E7": ("PCIe card: its network failed", "PCIe 卡网络严重异常", "cause", "link"),
    "080000EB": ("PCIe card: its disk failed", "PCIe 卡硬盘严重异常", "cause", "disk"),
    "080000ED": ("PCIe card: no heartbeat towards the BMC", "PCIe 卡与 BMC 心跳异常", "cause", "card"),
    "080000F3": ("PCIe card: the link is slower than it should be", "PCIe 链路降速率", "symptom", "card"),
    "0D000001": ("network card: MCE or AER error", "网卡 MCE/AER 错误", "cause", "card"),
    "0D000003": ("network card: too hot", "网卡温度过高", "symptom", "heat"),
    "0F000011": ("riser: its supply failed", "Riser 卡电源故障", "cause", "power"),
    "120000CD": ("a part is missing", "组件不在位", "symptom", "server"),
    "24000007": ("CPU board: its clock is lost", "CPU 板时钟丢失", "cause", "server"),
    "2400000D": ("CPU board: its voltage is too low", "CPU 板电压过低", "cause", "power"),
    "2400000F": ("CPU board: its voltage is too high", "CPU 板电压过高", "cause", "power"),
    "24000011": ("CPU board: its voltage cannot be read", "CPU 板电压无法读取", "symptom", "server"),
    "2800001F": ("the HCCS link between CPUs failed", "CPU 之间 HCCS 链路异常", "cause", "server"),
    "28000037": ("a cable failed", "线缆故障", "cause", "server"),
    "28000049": ("the HCCS link between CPUs lost lanes", "CPU HCCS 链路降级", "symptom", "server"),
    "28000053": ("the cable tray is abnormal", "线缆托架异常", "symptom", "server"),
    "29000001": ("network card: the link of a port is down", "网卡网口断开", "symptom", "link"),
    "2900002F": ("network card: the link of a port is down (major)", "网卡网口断开（严重）", "cause", "link"),
    "2C000031": ("the server had a fatal error", "服务器系统致命错误", "cause", "server"),
    "2C000081": ("CPU: a multi-bit ECC error reset the server", "CPU 多比特 ECC 错误导致系统复位", "cause", "server"),
    "62000006": ("the switch on the board is in a critical state", "板载交换机健康状态紧急告警", "cause", "switch"),
    "6200000C": ("the switch on the board is silent", "板载交换机心跳丢失", "cause", "switch"),
}

_SWITCH: Final[dict[str, tuple[str, str, bool]]] = {
    "00f103b0": ("a switch chip does not forward any more", "交换芯片转发功能失效", True),
    "00f103b6": ("a switch chip forwards in part only", "交换芯片部分转发功能失效", True),
    "00f1ff06": ("a module of a switch chip failed", "交换芯片内部模块失效", True),
    "00f1ff09": ("a port of a switch chip failed", "交换芯片端口失效", True),
    "00f1fef5": ("a port of a switch chip failed", "交换芯片端口失效", True),
    "08520003": ("a port of a switch chip is down", "交换芯片端口断开", True),
    "00f10509": ("a port of a switch chip lost lanes", "交换芯片端口 lane 数降低", False),
}

__all__ = ["alarm_of", "switch_alarm_of"]
