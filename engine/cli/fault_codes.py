"""`belay explain 80C98001`: what a fault code says, its level by the policies and tables in force and where that is
set, what Belay does on it, and the chips and nodes that report it now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from belay.engine.cli.codes import SWITCH_CODE
from belay.engine.documents import Desired, FaultPolicy
from belay.engine.documents.fault_policy import IDLE, INFERENCE, TRAINING
from belay.engine.model.cluster import Observed
from belay.engine.model.faults import CARD, HEARTBEAT, NETWORK, code_key, level_of
from belay.engine.model.levels import TO_NODE, FaultAction, NodeLevel
from belay.engine.model.log_codes import ADVICE, BMC, CHIP, SWITCH, meaning_of
from belay.engine.model.plan import Plan
from belay.engine.model.wording import counted
from belay.engine.plan import ChipRules, RulesInForce
from belay.engine.wire import faultconfig

Body = dict[str, Any]
_MOST: Final = 50
#: Planes in which a code may stand, and the ConfigMap of MindCluster whose table lies over the shipped one.
_PLANES: Final = {
    "chip": faultconfig.DEVICE,
    "public": faultconfig.CLUSTER,
    "node": faultconfig.NODE,
    "switch": faultconfig.DEVICE,
}
_OF_NODES: Final = ("node", "switch")
#: What an action does to a chip, or to a whole node.
_DOES: Final[Mapping[FaultAction, tuple[str, str]]] = {
    FaultAction.IGNORE: ("nothing", "nothing"),
    FaultAction.KEEP: ("pod stays; no new work", "pods stay; no new work"),
    FaultAction.STRATEGY: ("by the job's subHealthyStrategy",) * 2,
    FaultAction.TOLERATE: ("healed under the pod",) * 2,
    FaultAction.RESCHEDULE: ("moved, if labelled fault-scheduling",) * 2,
    FaultAction.RESET: ("no new work; reset", "no new work"),
    FaultAction.ISOLATE: ("no new work",) * 2,
}


def explain_fault(code: str, plan: Plan, observed: Observed, desired: Desired) -> Body:
    """What is known of a fault code, its levels in the pools, and which chips and nodes have it now."""
    rules = RulesInForce(desired, plan, observed)
    pools = sorted({node.pool for node in plan.nodes}) or [""]
    levels: list[Body] = []
    for plane in _planes_of(code, rules.desired):
        levels += _level_rows(code, plane, pools, _Known(desired, rules))
    if code == HEARTBEAT:
        levels.append(_heartbeat(rules.of_pool("")))

    body: Body = {"code": code, **_meaning(code, rules.desired), "levels": levels}
    body["rules"] = _counting(code, pools, rules)
    body["elsewhere"] = list(_elsewhere(code, desired))
    now = _reported_now(code, plan)
    body["now"] = now[:_MOST]
    if len(now) > _MOST:
        body["leftOut"] = f"{len(now) - _MOST} more: `belay get faults --filter code={code}`"
    listed = code == HEARTBEAT or any(not row["setBy"].startswith("no table") for row in body["levels"])
    body["summary"] = _summary(body, len(now), listed=listed)
    body["nextSteps"] = _next_steps(body, listed=listed)
    return body


class _Known(NamedTuple):
    """The declarations without the cluster's tables, and the rules in force."""

    declared: Desired
    rules: RulesInForce


def _planes_of(code: str, desired: Desired) -> list[str]:
    """The planes whose table lists a code; a code of no table is judged as one of chips."""
    key, tables = code_key(code), desired.tables
    listed = [plane for plane in _PLANES if plane in tables and key in map(code_key, tables[plane].code_levels)]
    return listed or ([] if code == HEARTBEAT or SWITCH_CODE.fullmatch(code) else ["chip"])


def _meaning(code: str, desired: Desired) -> Body:
    """What it says, by the table that lists it or by the parts of its number, and what is advised."""
    key = code_key(code)
    details = [
        detail
        for plane in _planes_of(code, desired)
        for listed, detail in desired.tables[plane].details.items()
        if code_key(listed) == key
    ]
    described = next((one.description for one in details if one.description), None)
    switch = SWITCH_CODE.fullmatch(code)
    if code == HEARTBEAT:
        return {"what": "the node is not ready by Kubernetes, or its Node object is gone"}
    if switch is not None:
        said = meaning_of(f"{SWITCH}{switch[1].lower()}-{switch[2].strip()}")
    else:
        said = meaning_of(f"{CHIP}{code}") or meaning_of(f"{BMC}{code}")
    body: Body = {"what": described or (said.en if said else "")}
    if said is not None:
        advice, advice_zh = ADVICE[said.advice]
        body |= {"whatZh": said.zh, "advice": advice, "adviceZh": advice_zh}
    return {name: text for name, text in body.items() if text}


def _level_rows(code: str, plane: str, pools: Sequence[str], known: _Known) -> Iterator[Body]:
    """The level of a code on a plane with what follows; pools that differ have rows of their own."""
    rows: dict[tuple[str, ...], tuple[Body, list[str]]] = {}
    for pool in pools:
        row = _level_row(code, plane, known.rules.of_pool(pool), known)
        key = tuple(str(cell) for cell in row.values())
        rows.setdefault(key, (row, []))[1].append(pool)
    for row, of in rows.values():
        yield row | ({"pools": of} if len(rows) > 1 else {})


def _level_row(code: str, plane: str, rules: ChipRules, known: _Known) -> Body:
    key = code_key(code)
    if plane in _OF_NODES:
        listed = {code_key(one): level for one, level in known.rules.desired.tables[plane].code_levels.items()}
        given, rule = rules.rules.overrides.get(key) or (listed[key], "table")
        level = TO_NODE.get(given, given)
    else:
        kind = NETWORK if key in known.rules.network_codes else CARD
        level, rule = level_of(rules.rules, kind, code, "")
    place = known.rules.place_of(rule)
    return {
        "plane": plane,
        "level": level,
        "setBy": _set_by(rule, plane, rules, known),
        "place": place.text if place is not None else None,
        **_actions(rules, level, whole_node=plane in _OF_NODES),
    }


def _set_by(rule: str, plane: str, rules: ChipRules, known: _Known) -> str:
    """What gives the level: a policy's rule, a table, or the rule for codes that no table lists."""
    if rule == "unlisted":
        beyond = rules.rules.unlisted
        by = ", ".join(f"{severity}: {level}" for severity, level in sorted(beyond.by_severity.items()))
        return f"no table lists it: by the driver's severity ({by}; otherwise {beyond.otherwise})"
    if rule != "table":
        return rule
    table = known.rules.desired.tables[plane]
    if table is not known.declared.tables.get(plane):
        namespace, name = _PLANES[plane]
        return f"ConfigMap/{namespace}/{name}"
    return f"FaultTable/{table.name}"


def _actions(rules: ChipRules, level: str, *, whole_node: bool) -> Body:
    return {
        f"in {use}" if use != IDLE else "idle": _DOES[rules.action(level, use)][whole_node]
        for use in (TRAINING, INFERENCE, IDLE)
    }


def _heartbeat(rules: ChipRules) -> Body:
    level = NodeLevel.SEPARATE.value
    return {"plane": "node", "level": level, "setBy": "Kubernetes", **_actions(rules, level, whole_node=True)}


def _counting(code: str, pools: Sequence[str], rules: RulesInForce) -> list[str]:
    """What repeated or lasting occurrences of a code do."""
    key, found = code_key(code), dict[str, None]()
    for pool in pools:
        known = rules.of_pool(pool).rules
        if (often := known.frequency.get(key)) is not None:
            until = f", for {_span(often.release_ms)}" if often.release_ms else ", until a person ends it"
            within = f"{counted(often.times, 'time')} within {_span(often.window_ms)}"
            found[f"{within}: {often.level}{until} ({often.rule})"] = None
        if (lasting := known.duration.get(key)) is not None:
            gone = f"until it is gone for {_span(lasting.recover_ms)}"
            found[f"longer than {_span(lasting.timeout_ms)}: {lasting.level} {gone} ({lasting.rule})"] = None
    return list(found)


def _span(milliseconds: int) -> str:
    seconds = milliseconds // 1000
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _elsewhere(code: str, desired: Desired) -> Iterator[str]:
    """Policies that mention the code for a part of the cluster only (single nodes, kinds of work), or in shadow."""
    key = code_key(code)
    for declared in desired.fault_policies:
        policy = declared.document
        scope, shadow = policy.spec.scope, policy.spec.mode == "shadow"
        if not (shadow or scope.nodes or scope.workloads) or not (level := _levelled(policy, key)):
            continue
        of = [*(f"node {node}" for node in scope.nodes), *(f"pool {pool}" for pool in scope.pools), *scope.workloads]
        where = f" on {', '.join(of)}" if of else ""
        place = desired.place_of(declared.origin).text
        mode = "would give (shadow)" if shadow else "gives"
        yield f"FaultPolicy/{policy.name} {mode} {level}{where}: {place}"


def _levelled(policy: FaultPolicy, key: str) -> str:
    return next((level for code, level in policy.code_levels.items() if code_key(code) == key), "")


def _reported_now(code: str, plan: Plan) -> list[Body]:
    key = code_key(code)
    rows: list[Body] = []
    for node in plan.nodes:
        if key in map(code_key, node.codes):
            rows.append({"node": node.node, "chip": "", "level": node.level, "state": node.state, "usedBy": None})
    for chip in plan.chips:
        if key in map(code_key, chip.codes):
            row = {"node": chip.node, "chip": chip.chip, "level": chip.level, "state": chip.state}
            rows.append(row | {"usedBy": chip.used_by})
    return rows


def _summary(body: Body, reported: int, *, listed: bool) -> str:
    words = [] if listed else ["no fault table and no policy lists it"]
    words.append(body.get("what") or "its meaning is not known")
    who = counted(reported, "chip or node", "chips or nodes") if reported else "none"
    words.append(f"{who} {'have' if reported > 1 else 'has'} it now")
    return "; ".join(words)


def _next_steps(body: Body, *, listed: bool) -> list[str]:
    steps = [f"belay explain chip {row['node']}/{row['chip']}" for row in body["now"][:3] if row["chip"]]
    steps += [f"belay explain node {row['node']}" for row in body["now"][:3] if not row["chip"]]
    if body["code"] != HEARTBEAT:
        steps.append(f"to give it another level: belay policy add NAME --level {body['code']}=LEVEL")
    if not listed and not body["now"]:
        steps.insert(0, "is it written as `belay get faults` shows it?")
    return steps
