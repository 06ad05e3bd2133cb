"""Fields of a wrong type are named, whatever else the object holds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belay.engine.observe.observed import observe
from belay.engine.wire.field_types import wrong_type

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "d"}}
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "d"}}


@pytest.mark.parametrize(
    ("obj", "field", "text"),
    [
        ({**POD, "spec": {"containers": "abc"}}, "spec.containers", "must be a list, but is text"),
        ({**POD, "spec": {"containers": [5]}}, "spec.containers[0]", "must be a mapping, but is a whole number"),
        ({**POD, "spec": {"nodeName": ["n"]}}, "spec.nodeName", "must be text, but is a list"),
        ({**POD, "spec": {"priority": True}}, "spec.priority", "must be a whole number, but is true or false"),
        (
            {**POD, "spec": {"containers": [{"resources": {"limits": []}}]}},
            "spec.containers[0].resources.limits",
            "must be a mapping, but is a list",
        ),
        ({**POD, "spec": {}, "status": {"phase": {}}}, "status.phase", "must be text, but is a mapping"),
        ({**NODE, "status": {"conditions": 5}}, "status.conditions", "must be a list, but is a whole number"),
        ({**NODE, "spec": {"taints": {}}}, "spec.taints", "must be a list, but is a mapping"),
        ({**MAP, "data": {"a": 1}}, "data.a", "must be text, but is a whole number"),
        ({**MAP, "metadata": {"name": "m", "uid": 3}}, "metadata.uid", "must be text, but is a whole number"),
        ({**NODE, "spec": None, "status": {"conditions": None}}, "", ""),
        ({**POD, "spec": {"containers": [{"name": "c"}], "unknown": 5}}, "", ""),
    ],
)
def test_the_first_field_of_a_wrong_type_is_named(obj: dict[str, Any], field: str, text: str) -> None:
    assert wrong_type(obj) == (field, text)


def test_a_finding_names_the_field() -> None:
    seen = observe([{**POD, "spec": {"containers": "abc"}, "status": {}}])
    (finding,) = seen.diagnostics
    assert (finding.object, finding.field) == ("Pod/d/p", "spec.containers")
    assert finding.message == "must be a list, but is text"


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda part: st.lists(part) | st.dictionaries(st.sampled_from(["spec", "status", "containers", "x"]), part),
    ),
    st.sampled_from(["Pod", "Node", "ConfigMap", "Job", "List"]),
)
def test_any_value_can_be_checked(part: Any, kind: str) -> None:
    field, text = wrong_type({"kind": kind, "metadata": part, "spec": part, "status": part, "data": part})
    assert bool(field) is bool(text)
