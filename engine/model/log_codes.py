"""Codes that lines of logs carry and that say by themselves what happened: events of chips, alarms of BMCs and
switches, errors of CANN and MindIE. Their names: ``Chip.80C98008``, ``Bmc.2C000031``, ``Switch.00f103b0-npu``,
``Cann.EZ9903``, ``MIE05E010003``.
"""

from __future__ import annotations

from typing import Final

from belay.engine.model.chip_events import Meaning
from belay.engine.model.chip_events import meaning_of as chip_meaning
from belay.engine.model.node_alarms import alarm_of, switch_alarm_of

CHIP: Final = "Chip."
BMC: Final = "Bmc."
SWITCH: Final = "Switch."
MINDIE: Final = "MIE"
CANN: Final = "Cann."

#: What to do, in English and Chinese, by the word that meanings use.
ADVICE: Final[dict[str, tuple[str, str]]] = {
    "module": ("Isolate the chip (kind Isolation) and reset it; if the event comes back, have the module replaced.",
               "隔离该芯片（Isolation）并复位；若再次出现，请更换模组。"),
    "reset": ("Reset the chip; if the event comes back, collect its logs with msnpureport and ask the vendor.",
              "复位该芯片；若再次出现，用 msnpureport 收集日志并联系厂商。"),
    "replace": ("Have the module replaced: its memory has no spare rows left.", "内存备用行已耗尽，请更换模组。"),
    "job": ("The job's operator or its memory accesses may be the reason: run it elsewhere; if it fails on this chip"
            " only, reset the chip.", "可能由算子或其访存引起：换卡运行；若仅此卡失败，请复位该芯片。"),
    "link": ("Check cable, optical module and switch port of that port.", "检查该端口的线缆、光模块与交换机端口。"),
    "heat": ("Check fans, air flow and room temperature.", "检查风扇、风道与机房温度。"),
    "power": ("Check the power supplies of the server, and have the board checked.", "检查服务器供电并检修主板。"),
    "stress": ("Run a stress test of the chip (ascend-dmi) before it takes work again.",
               "在重新使用前对该芯片做压测（ascend-dmi）。"),
    "server": ("Isolate the node (kind Isolation) and have the server checked.",
               "隔离该节点（Isolation）并检修服务器。"),
    "disk": ("Have the disk or its controller checked, and the node's data moved.", "检修硬盘或其控制器，并迁移数据。"),
    "card": ("Reseat the card; if the alarm comes back, have it replaced.", "重新插拔该卡；若再次告警，请更换。"),
    "switch": ("Look at the switch's own alarms; nodes behind that port lose their links.",
               "查看交换机自身告警；该端口下的节点会断链。"),
    "service": ("Read the lines around it in the log of that component.", "查看该组件日志中此行前后的内容。"),
    "cann": ("Look the code up in CANN's \"Troubleshooting\"; the lines below it give reason and solution.",
             "在 CANN《故障处理》中查询该错误码；其下方的行含原因与处理建议。"),
    "none": ("Nothing to do.", "无需处理。"),
}  # fmt: skip


def meaning_of(code: str) -> Meaning | None:
    """The meaning of an event's code as this module writes it; None for codes of rules and for unknown ones."""
    if code.startswith(CHIP):
        number = code.removeprefix(CHIP)
        return chip_meaning(number) if _is_hex(number, 8) else None
    if code.startswith(BMC):
        return alarm_of(code.removeprefix(BMC))
    if code.startswith(SWITCH):
        number, _, peer = code.removeprefix(SWITCH).partition("-")
        return switch_alarm_of(number, peer)
    if code.startswith(CANN) and len(code) == 11:
        name = _MODULES.get(code[6], "")
        return Meaning(f"CANN{name} reports error {code[5:]}", f"CANN{name} 上报错误 {code[5:]}", False, 20, "cann")
    if code.startswith(MINDIE) and len(code) == 12 and code[5] == "E":
        return _mindie(code[3:5], code[6:])
    return None


def _mindie(component: str, rest: str) -> Meaning | None:
    exact = _EXACT.get(f"{component}E{rest}".upper())
    if exact is not None:
        return exact
    name = _PARTS.get(component + rest[:1]) or _PARTS.get(component)
    if name is None:
        return None
    # only the services of MindIE MS number their reasons alike
    reason = _REASONS.get(rest[4:].upper()) if component == "03" else None
    en, zh, cause = reason or ("an error (see MindIE's list of error codes)", "错误（见 MindIE 错误码说明）", False)
    return Meaning(f"MindIE {name}: {en}", f"MindIE {name}：{zh}", cause, 35 if cause else 30, "service")


def _is_hex(text: str, digits: int) -> bool:
    return len(text) == digits and all(one in "0123456789abcdefABCDEF" for one in text)


def _mindie_error(part: str, en: str, zh: str, cause: bool = True) -> Meaning:
    return Meaning(f"MindIE {part}: {en}", f"MindIE {part}：{zh}", cause, 40 if cause else 30, "service")


#: Modules of CANN by the second character of their codes.
_MODULES: Final = {
    "1": " (graph engine)", "2": " (fusion engine)", "3": " (AI CPU)", "4": " (operator compiler)", "E": " (runtime)",
    "H": " (ACL)", "I": " (HCCL)", "J": " (HCCP)", "K": " (profiling)", "L": " (driver)", "Z": " (operators)",
}  # fmt: skip
_PARTS: Final = {
    "01": "Benchmark", "02": "Client", "031": "Controller", "032": "Coordinator", "033": "Deployer",
    "034": "HTTP server", "04": "Server", "05": "LLM", "06": "SD", "07": "RT", "08": "Torch",
}  # fmt: skip
_REASONS: Final = {
    "00": ("an exception was caught", "捕获到异常", False),
    "01": ("its configuration is wrong", "配置无效", True),
    "02": ("a parameter inside is wrong", "内部参数校验错误", False),
    "04": ("something was done twice", "重复操作", False),
    "05": ("something that it needs is not there", "找不到所需资源", True),
    "06": ("a limit of resources is reached", "资源受限", True),
    "07": ("memory could not be allocated", "内存分配失败", True),
    "08": ("no answer in time", "通信超时", False),
    "09": ("it cannot communicate", "通信失败", False),
    "0A": ("a call from above failed", "上层调用失败", False),
    "0B": ("something that it needs is not available", "资源不可用", True),
    "0D": ("it was interrupted", "操作被中断", False),
}
_EXACT: Final = {
    "04E020204": _mindie_error("Server", "a request was not valid", "请求输入校验失败", False),
    "04E020207": _mindie_error("Server", "a request names a model that is not there", "请求的模型名错误", False),
    "04E02040E": _mindie_error("Server", "parameters of a request are not valid", "请求参数校验失败", False),
    "04E020410": _mindie_error("Server", "a request took too long", "推理请求超时", False),
    "04E060102": _mindie_error("Server", "its engine library may not be read", "引擎库文件权限错误"),
    "04E060108": _mindie_error("Server", "the model backend did not start", "推理模型后端初始化失败"),
    "04E120208": _mindie_error("Server", "shared memory is too small", "共享内存不足"),
    "04E120414": _mindie_error("Server", "the master node does not answer", "多机推理主节点心跳检测失败", False),
    "04E121107": _mindie_error("Server", "gRPC certificates do not fit", "多机推理 gRPC 安全认证失败"),
    "05E000000": _mindie_error("ATB models", "parameters of the model are wrong", "模型参数校验失败"),
    "05E000001": _mindie_error("ATB models", "the model did not start", "模型初始化失败"),
    "05E000003": _mindie_error("ATB models", "the model is not supported", "不支持该模型"),
    "05E010000": _mindie_error("LLM", "a feature is not supported", "插件特性不支持"),
    "05E010001": _mindie_error("LLM", "what a feature demands is not met", "不满足特性使用要求"),
    "05E010003": _mindie_error("LLM", "sampling parameters are not valid", "采样参数无效", False),
    "05E010004": _mindie_error("LLM", "sampling parameters are not valid", "采样参数无效", False),
    "05E010008": _mindie_error("LLM", "the type of backend is not supported", "后端类型不支持"),
    "05E010012": _mindie_error("LLM", "eos_token_id is not valid", "eos_token_id 无效"),
    "05E01001A": _mindie_error("LLM", "KV cache could not be fetched from a prefill instance", "PD 分离拉取 KV 失败"),
    "05E01001B": _mindie_error("LLM", "prefill and decode instances could not connect", "PD 分离建链失败"),
}

__all__ = ["ADVICE", "BMC", "CANN", "CHIP", "MINDIE", "SWITCH", "Meaning", "meaning_of"]
