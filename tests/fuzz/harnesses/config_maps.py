"""ConfigMaps that agents, MindCluster, Volcano and Belay itself write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from belay.engine.model.diagnostics import ObjectKey
from belay.engine.observe.observed import observe
from belay.engine.wire import (
    deviceinfo,
    evidence,
    faultconfig,
    faultsubscriptions,
    globaltable,
    history,
    ledger,
    links,
    manualinfo,
    nodeinfo,
    orders,
    passinfo,
    pings,
    policy,
    publicinfo,
    rankfile,
    recoveryrecord,
    refusals,
    reservations,
    resetinfo,
    revisionlog,
    schedulerconf,
    seals,
    shardview,
    slownode,
    sourceinfo,
    steptimes,
    superpods,
    switches,
    sync,
    yamltext,
)
from belay.engine.wire.errors import WireError
from belay.engine.wire.gojson import check_code, read_object
from tests.fuzz.harness import Form, Harness, objects, text

_GOJSON: Final = "engine/wire/gojson.py"


def _stored(parse: Callable[[Any], object]) -> Callable[[bytes], object]:
    """An API server stores text below ``data``, and base64 below ``binaryData``."""

    def feed(obj: dict[str, Any]) -> object:
        for field in ("data", "binaryData"):
            found = obj.get(field)
            if found is not None and not isinstance(found, dict):
                return None
            if isinstance(found, dict) and not all(isinstance(value, str) for value in found.values()):
                return None
        return parse(obj)

    return objects(feed)


def _with_code(parse: Callable[[Any], object], key: str, covered: tuple[str, ...]) -> Callable[[Any], object]:
    """The ConfigMap as it is, and again with the CheckCode that its content should have."""

    def feed(obj: dict[str, Any]) -> object:
        body = _signed(obj, key, covered)
        if body is not None:
            parse(body)
        return parse(obj)

    return feed


def _signed(obj: Mapping[str, Any], key: str, covered: tuple[str, ...]) -> dict[str, Any] | None:
    import orjson

    try:
        body = read_object("", "", (obj.get("data") or {}).get(key))
    except WireError:
        return None
    part = body
    for name in covered:
        part = body.get(name)
        if not isinstance(part, dict):
            return None
    body["CheckCode"] = check_code(part if covered else {k: v for k, v in body.items() if k != "CheckCode"})
    try:
        return {**obj, "data": {**obj["data"], key: orjson.dumps(body).decode()}}
    except TypeError:
        return None


def _device(obj: Any) -> None:
    deviceinfo.parse(obj)
    deviceinfo.manual_and_upgrades(obj, "Ascend910")


def _sync(obj: Any) -> None:
    sync.parse_file_versions(obj)
    sync.parse_ignored(obj)
    sync.prune_base(obj)
    sync.parse_part(obj)
    sync.parse_inventory(obj)


def _history(obj: Any) -> None:
    for parse in (history.parse_node, history.parse_cluster, history.parse_job):
        try:
            parse(obj)
        except WireError:
            continue


def _policy(obj: Any) -> None:
    policy.parse_entitlements(obj)
    policy.parse_policy(obj)


def _public(obj: Any) -> None:
    publicinfo.statistics(obj)
    publicinfo.has_public_faults(obj)
    publicinfo.parse(obj)


def _switches(obj: Any) -> None:
    switches.state([(obj.get("metadata") or {}).get("annotations") or {}])
    switches.parse(obj)


def _scheduler(source: str) -> None:
    schedulerconf.parse(source)
    key = ObjectKey("v1", "ConfigMap", "volcano-system", "volcano-scheduler-configmap")
    schedulerconf.of({key: {"data": {"volcano-scheduler.conf": source}}})
    schedulerconf.arguments(source)


def _seals(obj: Any) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    pem = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key()
    keys = seals.TrustedKeys([pem.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)])
    keys.problem("a", seals.digests(seals.covered(obj)), seals.seal_of(obj))


def _keys(data: bytes) -> None:
    for read in (seals.SigningKey, lambda pem: seals.TrustedKeys([pem])):
        try:
            read(data)
        except ValueError:
            continue


def _ledger(obj: Any) -> None:
    for claim in ledger.parse(obj).values():
        claim.chips()


def _fault_config(obj: Any) -> None:
    faultconfig.read([obj, obj])


def _each(*parsers: Callable[[Any], object]) -> Callable[[Any], None]:
    def feed(obj: Any) -> None:
        for parse in parsers:
            try:
                parse(obj)
            except WireError as error:
                assert len(str(error)) < 1200

    return feed


def _ranks(found: str) -> None:
    steptimes.ranks_of(found)


def _observed(obj: Any) -> None:
    """The observer takes whatever a cluster file may hold."""
    items = obj["items"] if isinstance(obj.get("items"), list) else [obj]
    found = observe([item for item in items if isinstance(item, dict)])
    assert all(len(one.message) < 4096 for one in found.diagnostics)


def _data(name: str, parse: Callable[[Any], object], module: str, *also: str, **options: Any) -> Harness:
    return Harness(name, _stored(parse), (f"engine/wire/{module}.py", *also), (WireError,), **options)


HARNESSES: Final = (
    _data("deviceinfo", _with_code(_device, "DeviceInfoCfg", ("DeviceInfo",)), "deviceinfo", _GOJSON),
    _data("nodeinfo", _with_code(nodeinfo.parse, "NodeInfo", ("NodeInfo",)), "nodeinfo"),
    _data("faultconfig", _fault_config, "faultconfig"),
    _data("fault-subscribers", faultsubscriptions.parse, "faultsubscriptions"),
    _data("history", _history, "history"),
    _data("ledger", _ledger, "ledger"),
    _data("link-orders", links.parse_orders, "links"),
    _data("link-reports", links.parse_report, "links"),
    _data("manualinfo", manualinfo.parse, "manualinfo"),
    _data("orders", orders.parse_orders, "orders"),
    _data("agent-report", orders.parse_report, "orders"),
    _data("passinfo", passinfo.parse, "passinfo"),
    _data("policy", _policy, "policy"),
    _data("publicinfo", _public, "publicinfo"),
    _data("rankfile", rankfile.parse, "rankfile"),
    _data("recoveryrecord", recoveryrecord.parse, "recoveryrecord"),
    _data("reservations", reservations.parse, "reservations"),
    _data("refusals", refusals.parse, "refusals"),
    _data("resetinfo", resetinfo.read, "resetinfo"),
    _data("revisionlog", revisionlog.parse, "revisionlog"),
    _data("shardview", shardview.parse, "shardview"),
    _data("sourceinfo", sourceinfo.parse, "sourceinfo"),
    _data("switches", _switches, "switches"),
    _data("sync", _sync, "sync"),
    _data("seals", _seals, "seals"),
    _data("evidence", _each(evidence.parse, evidence.parse_rules), "evidence"),
    _data("slownode", _each(slownode.parse_settings, slownode.recorded), "slownode"),
    _data("superpods", superpods.pings_wanted, "superpods"),
    _data("steptimes", _each(steptimes.parse_steps), "steptimes"),
    _data("pings", _each(pings.parse_pings), "pings"),
    Harness("rank-runs", text(_ranks), ("engine/wire/steptimes.py",), (ValueError,), Form.TEXT, steps=2_000_000),
    Harness("keys", _keys, ("engine/wire/seals.py",), form=Form.TEXT),
    Harness(
        "scheduler-conf",
        text(_scheduler),
        ("engine/wire/schedulerconf.py", "engine/wire/yamltext.py"),
        (WireError,),
        Form.TEXT,
    ),
    Harness("yamltext", text(yamltext.load_all), ("engine/wire/yamltext.py",), (ValueError,), Form.TEXT),
    Harness("global-table", text(globaltable.read), ("engine/wire/globaltable.py",)),
    Harness(
        "observed",
        objects(_observed),
        (
            "engine/observe/observed.py",
            "engine/wire/objects.py",
            "engine/wire/field_types.py",
            "engine/wire/pod_field_types.py",
        ),
    ),
)
