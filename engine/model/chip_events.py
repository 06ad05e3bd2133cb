"""What an event id of an Ascend chip says: `0x80C98008` is node type 0x64 (AI Core), sensor type 0xC0, state 8.

The id packs three numbers that the driver's log also writes one by one (``Node Type=0x64; Sensor Type=0xc0; …
event_state=8``). Ids without these three parts (``A6…``, ``B4…``) are of other makers of events and have no text here.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Meaning(NamedTuple):
    """A text in English and Chinese; ``cause``: it alone may break a job; ``priority`` as rules have it;
    ``advice`` is a key of `belay.engine.model.log_codes.ADVICE`."""

    en: str
    zh: str
    cause: bool
    priority: int
    advice: str


def event_id(node_type: int, sensor_type: int, state: int) -> str:
    """The id of an event that a log writes in parts: eight upper-case digits."""
    return f"{0x80000000 | (node_type & 0xFFF) << 17 | (sensor_type & 0xFF) << 9 | state & 0x1FF:08X}"


def meaning_of(code: str) -> Meaning | None:
    """The meaning of an event id (eight hexadecimal digits); None where its parts are not known."""
    number = int(code, 16)
    if number >> 29 != 4:
        return None
    kind, sensor, state = number >> 17 & 0xFFF, number >> 9 & 0xFF, number & 0x1FF
    special = _SPECIAL.get((kind, sensor, state))
    if special is not None:
        return special
    module, condition = _MODULES.get(kind), _CONDITIONS.get((sensor, state))
    if module is None or condition is None:
        return None
    return condition._replace(en=f"{module[0]}: {condition.en}", zh=f"{module[1]}{condition.zh}")


def _cause(en: str, zh: str, advice: str = "module", *, priority: int = 85) -> Meaning:
    return Meaning(en, zh, True, priority, advice)


def _symptom(en: str, zh: str, advice: str = "module") -> Meaning:
    return Meaning(en, zh, False, 30, advice)


#: What a sensor reports, by sensor type and state.
_CONDITIONS: Final[dict[tuple[int, int], Meaning]] = {
    (0xC0, 0): _cause("the part failed", "模块故障"),
    (0xC0, 1): _cause("it could not be reset", "复位失败"),
    (0xC0, 2): _cause("it got wrong input from outside", "外部输入错误", priority=70),
    (0xC0, 3): _symptom("its software configuration is wrong", "内部软件配置错误", "job"),
    (0xC0, 4): _symptom("its software configuration is wrong", "软件配置错误", "job"),
    (0xC0, 5): _cause("parity error", "奇偶校验错误"),
    (0xC0, 7): _symptom("single-bit ECC error that was not corrected", "单比特 ECC 错误未纠正"),
    (0xC0, 8): _cause("multi-bit ECC error", "多比特 ECC 错误", priority=90),
    (0xC0, 9): _cause("an access to the bus failed", "总线访问错误", "job", priority=70),
    (0xC0, 10): _cause("no answer in time", "交互超时", priority=75),
    (0xC0, 13): _cause("the port is abnormal", "端口异常", "link"),
    (0x27, 0): _cause("its heartbeat is lost", "心跳丢失"),
    (0x01, 7): _symptom("hot, not yet fatal", "高温（非致命）", "heat"),
    (0x01, 9): _symptom("high temperature", "高温告警", "heat"),
    (0x01, 11): _cause("fatally hot", "致命高温", "heat", priority=90),
    (0x08, 7): _symptom("the main supply draws too much current", "主电源过流", "power"),
    (0x08, 8): _cause("control of overcurrent failed", "电源过流控制异常", "power"),
    (0x09, 13): _cause("the power bus (PMBus) raised an alert", "电源总线（PMBus）告警", "power"),
    (0x0C, 1): _cause("multi-bit ECC error on an access to memory", "访问内存颗粒出现多比特 ECC 错误", priority=90),
    (0x0C, 3): _symptom("an error that cannot be corrected, found by the patrol", "巡检发现不可纠正错误"),
    (0x0C, 9): _symptom("multi-bit ECC error, found by the patrol", "巡检发现多比特 ECC 错误"),
    (0x0C, 13): _cause("mirrored memory disagrees", "镜像错误"),
    (0xC2, 0): _cause("a process met a multi-bit ECC error", "业务访问触发多比特 ECC 错误", priority=90),
    (0xC2, 1): _symptom(
        "16 or more rows are isolated after multi-bit ECC errors", "多比特 ECC 隔离行数达到 16", "replace"
    ),
    (0xC2, 2): _cause("64 rows are isolated after ECC errors", "多比特 ECC 隔离达到 64", "replace", priority=90),
    (0xC2, 4): _cause("too many uncorrectable errors to report each", "不可纠正错误过多，上报被抑制", priority=90),
    (0xC3, 3): _symptom("the link went down", "链路断开", "link"),
    (0xC3, 5): _symptom("some lanes of the port failed", "部分 lane 故障", "link"),
    (0xC3, 12): _cause("a channel failed", "通道故障"),
    (0xC6, 0): _symptom("values that precision cannot explain", "检测到精度敏感特征异常", "stress"),
    (0xC6, 5): _cause("results of computing are wrong (high risk)", "检测到计算高风险异常", "stress", priority=90),
    (0xC6, 6): _symptom("results of computing may be wrong (low risk)", "检测到计算低风险异常", "stress"),
    (0xC7, 2): _cause("its cipher module failed", "密码算法模块错误"),
    (0xC7, 3): _cause("its key management failed", "密钥管理模块错误"),
    (0xC7, 5): _cause("it was attacked physically", "遭受物理攻击"),
    (0xC9, 0): _cause("a temperature sensor failed", "温度传感器异常"),
    (0xD1, 1): _cause("the voltage cannot be adjusted", "调压功能异常", "power"),
    (0xD1, 2): _cause("the frequency cannot be adjusted", "调频功能异常", "power"),
    (0xD1, 3): _cause("the current cannot be measured", "电流检测异常", "power"),
    (0xD1, 7): _symptom("its events are not reported", "事件上报异常"),
    (0xD0, 5): _cause("its ordinary resources were not released", "普通资源释放失败", "reset", priority=60),
    (0xD0, 6): _cause("its key resources were not released", "关键资源释放失败", "reset", priority=60),
}  # fmt: skip

#: Events whose text does not follow from module and condition.
_SPECIAL: Final[dict[tuple[int, int, int], Meaning]] = {
    (0x54, 0x27, 0): _cause("bus ring: its self-test found an error", "总线 Ring 自检错误"),
    (0x64, 0xC0, 0): _cause("AI Core: instruction data is damaged", "AI Core 指令数据校验失败"),
    (0x65, 0xC0, 0): _cause("vector core: instruction data is damaged", "Vector Core 指令数据校验失败"),
    (0x67, 0xC0, 0): _cause("SDMA: it could not be reset", "SDMA 复位失败"),
    (0x5B, 0xC0, 5): _symptom("SLLC: a check failed", "SLLC 校验错误"),
    (0x7B, 0xC6, 2): _cause("task scheduler: a runtime queue (RTSQ) hangs", "任务调度器 RTSQ 资源挂死", "reset"),
    (0x7B, 0xC6, 3): _cause("task scheduler: a queue (ACSQ) hangs", "任务调度器 ACSQ 资源挂死", "reset"),
    (0x7B, 0xC6, 4): _cause("task scheduler: a PCIe DMA channel hangs", "PCIe DMA 通道资源挂死", "reset"),
    (0xDB, 0xC0, 5): _symptom("UB address arbiter: an access to the bus failed", "UB AA 总线错误"),
    (0x601, 0xD0, 0): _cause("ProcMgr on the chip: its heartbeat is lost", "芯片进程 ProcMgr 心跳丢失", "reset"),
    (0x617, 0xD0, 1): _symptom("operating system of the chip: memory is almost used up", "芯片系统内存超限", "reset"),
    (0x617, 0xD0, 9): Meaning("the chip started", "芯片初始化启动完成", False, 0, "none"),
}  # fmt: skip

#: Parts of a chip by node type.
_MODULES: Final[dict[int, tuple[str, str]]] = {
    0x40: ("SoC", "SoC "),
    0x50: ("CPU of the chip", "芯片 CPU "),
    0x51: ("L3 cache data", "L3D "),
    0x52: ("L3 cache tags", "L3T "),
    0x56: ("interrupt controller (GIC)", "中断控制器（GIC）"),
    0x58: ("miscellaneous node (MN) of the bus", "总线 MN "),
    0x5A: ("SIOE", "SIOE "),
    0x5B: ("SLLC", "SLLC "),
    0x5C: ("PCIe", "PCIe "),
    0x5D: ("RoCE", "RoCE "),
    0x5E: ("NIC", "NIC "),
    0x63: ("task scheduler (TS)", "任务调度器（TS）"),
    0x64: ("AI Core", "AI Core "),
    0x65: ("vector core", "Vector Core "),
    0x66: ("L2 buffer", "L2 Buffer "),
    0x67: ("SDMA", "SDMA "),
    0x69: ("JPEG decoder", "JPEGD "),
    0x6A: ("JPEG encoder", "JPEGE "),
    0x6C: ("video decoder", "VDEC "),
    0x6D: ("video encoder", "VENC "),
    0x6E: ("image processing (VPC)", "VPC "),
    0x6F: ("DDR memory", "DDR "),
    0x70: ("HBM memory", "HBM "),
    0x71: ("power management (LPM)", "低功耗管理（LPM）"),
    0x72: ("security module (HSM)", "安全模块（HSM）"),
    0x73: ("driver of the trusted environment (TEE)", "TEE 驱动"),
    0x78: ("DDR arbiter", "DDRA "),
    0x79: ("HBM arbiter", "HBMA "),
    0x7B: ("task scheduler (HWTS/STARS)", "任务调度器（HWTS/STARS）"),
    0x7D: ("CPU of the task scheduler", "TS CPU "),
    0x83: ("network port", "网口"),
    0x97: ("firmware of the task scheduler", "TS 固件"),
    0x98: ("DSA", "DSA "),
    0x99: ("dispatch of the task scheduler", "TS Dispatch "),
    0x9A: ("STARS address arbiter", "STARS AA "),
    0x9D: ("dispatch of AI Cores", "AIC Dispatch "),
    0x9E: ("AI Core address arbiter", "AIC AA "),
    0xA3: ("dispatch of DVPP", "DVPP Dispatch "),
    0xA4: ("DVPP address arbiter", "DVPP AA "),
    0xAB: ("dispatch AO", "AO Dispatch "),
    0xAF: ("dispatch of peripherals", "PERI Dispatch "),
    0xB0: ("peripheral address arbiter", "PERI AA "),
    0xB7: ("dispatch of I/O", "IO Dispatch "),
    0xB8: ("I/O address arbiter", "IO AA "),
    0xC9: ("dispatch of DSA", "DSA Dispatch "),
    0xCA: ("dispatch of the NIC", "NIC Dispatch "),
    0xCB: ("dispatch of PCIe", "PCIe Dispatch "),
    0xCD: ("HCCS", "HCCS "),
    0xD1: ("HCCS port", "HCCS 端口"),
    0xD2: ("management unit (IMU)", "管理单元（IMU）"),
    0xD5: ("RoH", "RoH "),
    0xD6: ("RoH port", "RoH 端口"),
    0xD7: ("UB", "UB "),
    0xD8: ("UB port", "UB 端口"),
    0xD9: ("collective unit (CCU)", "集合通信单元（CCU）"),
    0xDA: ("dispatch of UB", "UB Dispatch "),
    0xDB: ("UB address arbiter", "UB AA "),
    0x602: ("process iammgr of the chip", "芯片进程 iammgr "),
    0x603: ("process ProcLauncher of the chip", "芯片进程 ProcLauncher "),
    0x604: ("process adda of the chip", "芯片进程 adda "),
    0x605: ("process dmp_daemon of the chip", "芯片进程 dmp_daemon "),
    0x606: ("process sklogd of the chip", "芯片进程 sklogd "),
    0x607: ("process slogd of the chip", "芯片进程 slogd "),
    0x608: ("process log-daemon of the chip", "芯片进程 log-daemon "),
    0x609: ("process hdcd of the chip", "芯片进程 hdcd "),
    0x60B: ("process aicpu_scheduler of the chip", "芯片进程 aicpu_scheduler "),
    0x60C: ("process queue_scheduler of the chip", "芯片进程 queue_scheduler "),
    0x60E: ("process aicpu_cust_sd of the chip", "芯片进程 aicpu_cust_sd "),
    0x60F: ("process hccp of the chip", "芯片进程 hccp "),
    0x610: ("process tsdaemon of the chip", "芯片进程 tsdaemon "),
    0x623: ("process resource_mgr of the chip", "芯片进程 resource_mgr "),
}

__all__ = ["Meaning", "event_id", "meaning_of"]
