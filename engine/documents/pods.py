"""Rules for the parts of pod templates that Belay reads, and for NPU requests.

Sources: docs/zh/scheduling/06_api/15_yaml_configuration.md (labels, annotations, resources) and Kubernetes' API rules.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from belay.engine.documents.containers import check_amounts, check_container_fields, check_limits, check_pod_fields
from belay.engine.documents.problems import Path, Problems
from belay.engine.documents.spelling import misspelt_fields
from belay.engine.model.labels import (
    ASCEND_310,
    ASCEND_310P,
    ASCEND_910,
    DISTRIBUTED_LABEL,
    ELASTIC_SCHEDULING,
    FAULT_RETRY_TIMES,
    FAULT_SCHEDULING,
    NPU,
    NPU_310_STRATEGY,
    POD_RESCHEDULING,
    PROCESS_RECOVER_ENABLE,
    RING_CONTROLLER,
    SUB_HEALTHY_STRATEGY,
    SUPER_POD_AFFINITY,
    TOR_AFFINITY,
    VNPU_DVPP,
    VNPU_LEVEL,
)

NPU_RESOURCE: Final = re.compile(r"^huawei\.com/(?:Ascend910|Ascend310P|Ascend310|npu)(?:-.+)?$")
MAX_NPUS: Final = 25_600
"""Most NPUs or shares that one container can request: 256 chips of 100 shares."""

#: Labels with a closed set of values; another value is legal Kubernetes but switches the feature off.
_LABEL_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    FAULT_SCHEDULING: ("grace", "force", "off", "external-grace", "external-force"),
    POD_RESCHEDULING: ("on", "off"),
    PROCESS_RECOVER_ENABLE: ("on", "pause", "off"),
    SUB_HEALTHY_STRATEGY: ("ignore", "graceExit", "forceExit", "hotSwitch"),
    ELASTIC_SCHEDULING: ("on", "off"),
    TOR_AFFINITY: ("large-model-schema", "normal-schema", "null"),
    SUPER_POD_AFFINITY: ("soft", "hard"),
    NPU_310_STRATEGY: ("card", "chip"),
    VNPU_LEVEL: ("low", "high"),
    VNPU_DVPP: ("yes", "no", "null"),
    "duo": ("true", "false"),
    DISTRIBUTED_LABEL: ("true", "false"),
}
#: Labels that a missing letter switches off without a word.
_SWITCHES: Final = tuple(
    key for key in (*_LABEL_WORDS, FAULT_RETRY_TIMES, RING_CONTROLLER) if len(key) > 11 or "-" in key
)
_RESOURCES: Final = (ASCEND_910, ASCEND_310P, ASCEND_310, NPU)
#: Similarity (``difflib``) from which a name counts as a known one mistyped.
_ALIKE: Final = 0.9
_LABEL_VALUE: Final = re.compile(r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")
_KEY: Final = re.compile(r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")


def check_labels(problems: Problems, metadata: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """Check that labels and annotations are text and known labels have known values; return the labels."""
    labels = problems.mapping(metadata, "labels", path)
    for key, value in labels.items():
        where = (*path, "labels", key)
        if len(key) > 317 or not _KEY.match(key):
            problems.error(where, f"{key!r:.80} is not a label key", at_key=True)
        if not isinstance(value, str):
            problems.error(where, "label values are text: put the value in quotes")
        elif len(value) > 63 or not _LABEL_VALUE.match(value):
            problems.error(where, f"{value!r:.80} is not a label value: at most 63 letters, digits, '-', '_' or '.'")
        elif key in _LABEL_WORDS and value not in _LABEL_WORDS[key]:
            problems.warn(where, f"{value!r:.80} has no effect here: known are {', '.join(_LABEL_WORDS[key])}")
        elif (near := _mistyped(key, _SWITCHES)) and near not in labels:
            problems.warn(where, f"label has no effect: did you mean {near}?", at_key=True)
    annotations = problems.mapping(metadata, "annotations", path)
    for key, value in annotations.items():
        if not isinstance(value, str):
            problems.error((*path, "annotations", key), "annotation values are text: put the value in quotes")
    _check_retry_times(problems, labels, (*path, "labels"))
    return labels


def _mistyped(name: str, known: Sequence[str]) -> str:
    """The known name that another one almost is; empty for known names and for those that are like none."""
    if name in known:
        return ""
    return next(iter(difflib.get_close_matches(name[:80], known, n=1, cutoff=_ALIKE)), "")


def _check_retry_times(problems: Problems, labels: Mapping[str, Any], path: Path) -> None:
    times = labels.get(FAULT_RETRY_TIMES)
    if isinstance(times, str) and not (times.isascii() and times.isdigit()):
        problems.warn((*path, FAULT_RETRY_TIMES), f"{times!r:.80} is not a number of retries, 0 is used")


def check_retried(problems: Problems, labels: Any, policy: Any, path: Path) -> None:
    """Warn of ``fault-retry-times`` on pods that kubelet restarts: the label has no effect on them."""
    times = labels.get(FAULT_RETRY_TIMES) if isinstance(labels, Mapping) else None
    wanted = isinstance(times, str) and times.isascii() and times.isdigit() and times.strip("0") != ""
    if wanted and policy in ("Always", "OnFailure"):
        problems.warn(path, f"fault-retry-times needs restartPolicy Never; with {policy} failed pods are not retried")


def check_template(problems: Problems, template: Mapping[str, Any], path: Path, volumes: Collection[str] = ()) -> int:
    """Check one pod template; return the NPUs or shares that a pod of it requests. ``volumes``: added by its owner."""
    metadata = problems.mapping(template, "metadata", path)
    if metadata:
        check_labels(problems, metadata, (*path, "metadata"))
    if template.get("spec") is None:
        problems.error((*path, "spec"), "required field is missing")
        return 0
    return check_pod_spec(problems, problems.mapping(template, "spec", path), (*path, "spec"), volumes)


def check_pod_spec(problems: Problems, spec: Mapping[str, Any], path: Path, volumes: Collection[str] = ()) -> int:
    """Check one pod spec; return the NPUs or shares that it requests. ``volumes``: added by its owner."""
    check_pod_fields(problems, spec, path)
    containers = problems.sequence(spec, "containers", path)
    if not containers:
        problems.error((*path, "containers"), "a pod needs at least one container")
    selector = problems.mapping(spec, "nodeSelector", path)
    for key, value in selector.items():
        if not isinstance(value, str):
            problems.error((*path, "nodeSelector", key), "node labels are text: put the value in quotes")
    problems.text(spec, "schedulerName", path)
    problems.text(spec, "priorityClassName", path)
    problems.integer(spec, "terminationGracePeriodSeconds", path, minimum=0)
    resources: dict[str, int] = {}
    names: set[str] = set()
    known = {*volumes, *(str(v.get("name")) for v in _rows(spec.get("volumes")))}
    init_containers = problems.sequence(spec, "initContainers", path)
    places = [("containers", place, row) for place, row in enumerate(containers)]
    for kind, index, container in [
        *places,
        *(("initContainers", place, row) for place, row in enumerate(init_containers)),
    ]:
        where = (*path, kind, index)
        name = _check_container(problems, container, where, resources if kind == "containers" else {}, known)
        if name and name in names:
            problems.error((*where, "name"), f"two containers are named {name!r:.80}")
        names.add(name)
    if len(resources) > 1:
        kinds = ", ".join(sorted(resources))
        problems.error((*path, "containers"), f"one pod may request only one NPU resource, this one names {kinds}")
    _check_volumes(problems, spec, path)
    return sum(resources.values())


def _rows(found: Any) -> list[Mapping[str, Any]]:
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def _check_container(
    problems: Problems, container: Any, path: Path, resources: dict[str, int], volumes: Collection[str]
) -> str:
    if not isinstance(container, dict):
        problems.error(path, "must be a mapping with name and image")
        return ""
    check_container_fields(problems, container, path, volumes)
    name = problems.text(container, "name", path, required=True) or ""
    image = problems.text(container, "image", path)
    if container.get("image") is None or image == "":
        problems.warn((*path, "image"), "a container without an image is refused by the API server")
    for index, entry in enumerate(problems.sequence(container, "env", path)):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            problems.error((*path, "env", index), "an environment variable needs a name")
        elif entry.get("value") is not None and not isinstance(entry["value"], str):
            problems.error((*path, "env", index, "value"), "environment values are text: put the value in quotes")
    for key in ("command", "args"):
        for index, word in enumerate(problems.sequence(container, key, path)):
            if not isinstance(word, str):
                problems.error((*path, key, index), "must be text: put it in quotes")
    if container.get("resources") is not None:
        found = problems.mapping(container, "resources", path)
        _check_resources(problems, found, (*path, "resources"), resources)
    return name


def _check_resources(problems: Problems, found: Mapping[str, Any], path: Path, resources: dict[str, int]) -> None:
    misspelt_fields(problems, found, ("limits", "requests"), path)
    requests, limits = problems.mapping(found, "requests", path), problems.mapping(found, "limits", path)
    plain = {side: _without_npus(values) for side, values in (("requests", requests), ("limits", limits))}
    for side, values in plain.items():
        check_amounts(problems, values, (*path, side))
    check_limits(problems, plain["requests"], plain["limits"], path)
    for side, values in (("requests", requests), ("limits", limits)):
        for key, value in values.items():
            near = "" if NPU_RESOURCE.match(key) else _mistyped_resource(key)
            if near:
                text = f"no device plugin offers {key:.80}, so the pod would get no NPU: did you mean {near}?"
                problems.error((*path, side, key), text, at_key=True)
            if NPU_RESOURCE.match(key):
                count = _pieces(value)
                if count is None:
                    problems.error((*path, side, key), f"NPU quantities are whole numbers, but this is {value!r:.40}")
                elif side == "limits":
                    resources[key] = resources.get(key, 0) + count
    for key, value in requests.items():
        if not NPU_RESOURCE.match(key) or _pieces(value) is None:
            continue
        if key not in limits:
            problems.error((*path, "requests", key), f"limits must name {key} too, with the same number")
            resources[key] = resources.get(key, 0) + (_pieces(value) or 0)
        elif _pieces(limits[key]) not in (None, _pieces(value)):
            problems.error(
                (*path, "requests", key), f"requests and limits of {key} must be equal: {value} is not {limits[key]}"
            )


def _mistyped_resource(key: str) -> str:
    """The NPU resource that a key almost is; empty for other resources."""
    lower = {name.lower(): name for name in _RESOURCES}
    base, dash, part = key.partition("-")
    same = lower.get(base.lower()) or lower.get(base.lower() + part.lower())
    if same:
        return same + (f"-{part}" if dash and base.lower() in lower else "")
    return _mistyped(key, _RESOURCES)


def _without_npus(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if not NPU_RESOURCE.match(key)}


def _pieces(value: Any) -> int | None:
    """A whole number of devices, written as a number or as text; ``None`` for anything else."""
    if isinstance(value, str) and re.match(r"^[0-9]{1,6}$", value):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_NPUS:
        return value
    return None


def _check_volumes(problems: Problems, spec: Mapping[str, Any], path: Path) -> None:
    for index, volume in enumerate(problems.sequence(spec, "volumes", path)):
        where = (*path, "volumes", index)
        if not isinstance(volume, dict):
            problems.error(where, "must be a mapping with a name")
            continue
        problems.text(volume, "name", where, required=True)
        for kind in ("configMap", "secret", "projected", "downwardAPI"):
            source = volume.get(kind)
            if isinstance(source, dict) and isinstance(source.get("defaultMode"), str):
                problems.error(
                    (*where, kind, "defaultMode"),
                    "file modes are numbers: write octal 0644 as 0o644 or 420, YAML versions differ on a leading 0",
                )
