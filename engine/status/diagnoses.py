"""Why a job broke, as people read it: in its ConfigMap and in `belay explain job`; and the rules that agents match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from belay.engine.documents import Desired, DiagnosisRule
from belay.engine.model.cluster import Observed
from belay.engine.model.diagnosis import Diagnosis, EventSummary, Root, diagnose
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.log_codes import ADVICE, meaning_of
from belay.engine.model.log_evidence import PodEvidence
from belay.engine.model.times import rfc3339
from belay.engine.status.bodies import config_map
from belay.engine.wire import evidence as wire
from belay.engine.wire import names

#: How a root was found: what people read, in English and Chinese.
_FOUND: Final[Mapping[str, tuple[str, str]]] = {
    "located": ("HCCL's heartbeat named it", "HCCL 心跳上报的异常设备"),
    "firstError": ("its own error came first", "最早出现自身错误"),
    "silent": ("it is silent while others wait", "其他卡等待超时而该卡无报错"),
    "waitedFor": ("the others wait for it in the end", "其他卡的等待最终指向它"),
    "late": ("it came late to an operation", "该卡最晚到达通信算子"),
    "unclear": ("the logs do not show it", "日志不足以判定"),
}
_SILENT: Final = (
    "No log of it says why: look whether its process ended, hangs or never started, and whether its node answers",
    "其日志未说明原因：请检查进程是否退出、卡住或未启动，以及节点是否可达",
)


def diagnosis_body(
    evidence: Sequence[PodEvidence], desired: Desired, missing: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The diagnosis of a job's newest failure; empty where its logs say nothing.

    Args:
        missing: nodes by name of the job's pods without evidence, where their silence counts.
    """
    rules = desired.diagnosis_rules
    weights = {code: rule.priority for code, rule in rules.items()}
    for code in {event.code for one in evidence for event in one.events} - weights.keys():
        if (meaning := meaning_of(code)) is not None:
            weights[code] = meaning.priority
    found = diagnose(evidence, expected=missing, priorities=weights)
    return {"diagnosis": _body(found, rules)} if found is not None else {}


def _body(found: Diagnosis, rules: Mapping[str, DiagnosisRule]) -> dict[str, Any]:
    how, how_zh = _FOUND[found.rule]
    where = ", ".join(map(_name, found.roots[:3])) or "unknown"
    more = f" and {len(found.roots) - 3} more" if len(found.roots) > 3 else ""
    node = next((root.node for root in found.roots if root.node), "")
    return {
        "time": _time(found.at_ms),
        "root": f"{where}{more}: {how}" if found.roots else how,
        "rootZh": f"{where}: {how_zh}" if found.roots else how_zh,
        "rule": found.rule,
        "figures": found.figures,
        "roots": [_root(root, rules) for root in found.roots],
        "events": [_event(event, rules) for event in found.events],
        "podsRead": f"{found.heard} of {found.expected}",
        "next": f"belay explain node {node}" if node else "read the logs that agents kept (docs/diagnosis.md)",
    }


def _root(root: Root, rules: Mapping[str, DiagnosisRule]) -> dict[str, Any]:
    body: dict[str, Any] = {"rank": root.rank if root.rank >= 0 else None, "pod": root.pod, "node": root.node}
    if root.code:
        body |= {"code": root.code, "time": _time(root.at_ms)}
    if (texts := _texts(root.code, rules)) is not None:
        return body | dict(zip(("what", "whatZh", "advice", "adviceZh"), texts, strict=True))
    return body | {"advice": _SILENT[0], "adviceZh": _SILENT[1]} if not root.code else body


def _event(event: EventSummary, rules: Mapping[str, DiagnosisRule]) -> dict[str, Any]:
    texts = _texts(event.code, rules)
    title = {"what": texts[0], "whatZh": texts[1]} if texts is not None else {}
    return {
        "code": event.code, "role": event.role.value, **title, "first": _time(event.first_ms), "lines": event.lines,
        "pods": event.pods, "node": event.node, "example": event.example,
    }  # fmt: skip


def _texts(code: str, rules: Mapping[str, DiagnosisRule]) -> tuple[str, str, str, str] | None:
    """What happened and what to do, each in English and Chinese: by a rule, else by the code itself."""
    rule = rules.get(code)
    if rule is not None:
        return rule.title.en, rule.title.of("zh"), rule.advice.en, rule.advice.of("zh")
    meaning = meaning_of(code)
    return (meaning.en, meaning.zh, *ADVICE[meaning.advice]) if meaning is not None else None


def _name(root: Root) -> str:
    rank = f"rank {root.rank}" if root.rank >= 0 else "pod"
    place = " ".join(
        part for part in (root.pod, f"on {root.node}" if root.node and root.node != root.pod else "") if part
    )
    return f"{rank} ({place})" if root.rank >= 0 and place else f"{rank} {place or 'unknown'}"


def _time(ms: int) -> str | None:
    return rfc3339(ms / 1000) if ms else None


def rule_bodies(desired: Desired, observed: Observed) -> list[dict[str, Any]]:
    """``belay-diagnosis`` with the repository's own rules; blanked once it declares none, and not made before."""
    own = desired.own_diagnosis_rules
    if not own and ObjectKey("v1", "ConfigMap", names.SYSTEM, wire.RULES) not in observed.objects:
        return []
    body = wire.build_rules(rule.log_rule() for rule in own)
    return [config_map(names.SYSTEM, wire.RULES, body["data"])]
