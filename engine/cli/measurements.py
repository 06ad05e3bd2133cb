"""What chips measure, for `belay top`: from a Prometheus server, or from pages of NPU exporters.

Sources: the HTTP API of Prometheus (instant queries), its text exposition format, and the metrics of the NPU exporter
(``agents/exporter/table.py``). Prometheus names a node in label ``node`` or ``instance``, as
``deploy/monitoring/prometheus.yaml`` writes it.
"""

from __future__ import annotations

import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from belay.engine.errors import InputError

_PREFIX: Final = "npu_chip_info_"
_METRICS: Final = ("utilization", "hbm_used_memory", "hbm_total_memory", "power", "temperature")
_MOST_BYTES: Final = 256 << 20
_SECONDS: Final = 10.0
#: Values with which drivers say that there is none.
_NONE: Final = frozenset({-1.0, 4294967295.0})
_OPTION: Final = "--metrics"


class Reading(msgspec.Struct):
    """One chip: AI core utilisation (%), HBM (MB), power (W), temperature (degrees Celsius); None: unknown."""

    utilization: float | None = None
    hbm_used_memory: float | None = None
    hbm_total_memory: float | None = None
    power: float | None = None
    temperature: float | None = None


#: Readings by node and chip id.
Measured = dict[tuple[str, int], Reading]


class _Sample(NamedTuple):
    metric: str
    labels: Mapping[str, str]
    value: float


def measured(places: Sequence[str], addresses: Mapping[str, str]) -> Measured:
    """The newest readings of all places.

    A place is the address of a Prometheus server (``http://prometheus:9090``), or the page of one node's exporter: an
    address that ends in ``/metrics``, or a file, written ``NODE=PLACE``. ``addresses`` maps names and internal IP
    addresses to nodes.

    Raises:
        InputError: a place cannot be read, is no such page, or does not say which node it is about.
    """
    found: Measured = {}
    for place in places:
        node, place = _named(place, addresses)
        if _is_page(place):
            _take(found, _page(place), addresses, node or _host_node(place, addresses))
        else:
            _take(found, _query(place), addresses, node)
    return found


def _named(place: str, addresses: Mapping[str, str]) -> tuple[str, str]:
    node, equals, rest = place.partition("=")
    if equals and "/" not in node and "?" not in node:
        if node not in addresses:
            raise InputError(f"there is no node {node!r}", where=_OPTION, hint="`belay get nodes` lists them.")
        return addresses[node], rest
    return "", place


def _is_page(place: str) -> bool:
    parts = urllib.parse.urlsplit(place)
    return parts.scheme not in ("http", "https") or parts.path.rstrip("/").endswith("/metrics")


def _host_node(place: str, addresses: Mapping[str, str]) -> str:
    host = urllib.parse.urlsplit(place).hostname or ""
    nodes = set(addresses.values())
    node = addresses.get(host) or (next(iter(nodes)) if len(nodes) == 1 else "")
    if not node:
        raise InputError(
            f"{_shown(place)} does not say which node it is about", where=_OPTION, hint=f"Write NODE={_shown(place)}."
        )
    return node


def _page(place: str) -> Iterator[_Sample]:
    remote = urllib.parse.urlsplit(place).scheme in ("http", "https")
    return of_page(_fetched(place) if remote else _file(place), place)


def of_page(data: bytes, place: str) -> Iterator[_Sample]:
    """The samples of chips on an exporter's page.

    Raises:
        InputError: it is no such page.
    """
    from prometheus_client.parser import text_string_to_metric_families

    lines = [line for line in data.decode("utf-8", "replace").splitlines() if line.startswith(_PREFIX)]
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                yield _Sample(sample.name, sample.labels, float(sample.value))
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise InputError(f"{_shown(place)} is not a page of metrics: {error}", where=_OPTION) from error


def _query(place: str) -> Iterator[_Sample]:
    names = "|".join(_METRICS)
    query = urllib.parse.urlencode({"query": f'{{__name__=~"{_PREFIX}({names})"}}'})
    return of_answer(_fetched(f"{place.rstrip('/')}/api/v1/query?{query}", shown=_shown(place)), place)


def of_answer(data: bytes, place: str) -> Iterator[_Sample]:
    """The samples of an instant query's answer.

    Raises:
        InputError: it is no such answer.
    """
    try:
        body = msgspec.json.decode(data)
        rows: Any = body["data"]["result"] if body["status"] == "success" else None
        if not isinstance(rows, list):
            raise InputError(f"{_shown(place)}: {str(body.get('error'))[:200]}", where=_OPTION)
        for row in rows:
            labels = {str(key): str(value) for key, value in row["metric"].items()}
            yield _Sample(labels.get("__name__", ""), labels, float(row["value"][1]))
    except (msgspec.DecodeError, RecursionError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{_shown(place)} does not answer as Prometheus does", where=_OPTION,
            hint="Give the server's address, such as http://prometheus:9090, or an exporter's page, …/metrics.",
        ) from error  # fmt: skip


def _take(found: Measured, samples: Iterable[_Sample], addresses: Mapping[str, str], node: str) -> None:
    for sample in samples:
        field = sample.metric.removeprefix(_PREFIX)
        chip = sample.labels.get("id", "")
        if field not in _METRICS or not (chip.isascii() and chip.isdecimal() and len(chip) < 7):
            continue
        where = node or _node_of(sample.labels, addresses)
        if where and math.isfinite(sample.value) and sample.value not in _NONE:
            setattr(found.setdefault((where, int(chip)), Reading()), field, sample.value)


def _node_of(labels: Mapping[str, str], addresses: Mapping[str, str]) -> str:
    for name in ("node", "kubernetes_node", "instance"):
        value = labels.get(name, "")
        host = value.rpartition(":")[0] if value.rpartition(":")[2].isdecimal() else value
        if node := addresses.get(value) or addresses.get(host.strip("[]")):
            return node
    return ""


def _fetched(address: str, shown: str = "") -> bytes:
    shown = shown or _shown(address)
    try:
        with urllib.request.urlopen(address, timeout=_SECONDS) as answer:
            data: bytes = answer.read(_MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        raise InputError(f"{shown} answers {error.code} {error.reason}", where=_OPTION) from error
    except (OSError, ValueError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", None) or error
        raise InputError(f"{shown} cannot be read: {reason}", where=_OPTION) from error
    return _bounded(data, shown)


def _file(place: str) -> bytes:
    try:
        with Path(place).open("rb") as stream:
            return _bounded(stream.read(_MOST_BYTES + 1), place)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=place[:200]) from error


def _bounded(data: bytes, shown: str) -> bytes:
    if len(data) > _MOST_BYTES:
        raise InputError(f"{shown} is larger than {_MOST_BYTES >> 20} MiB", where=_OPTION)
    return data


def _shown(place: str) -> str:
    """A place without what may be a secret in it."""
    parts = urllib.parse.urlsplit(place)
    if parts.scheme not in ("http", "https"):
        return place[:200]
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"[:200]
