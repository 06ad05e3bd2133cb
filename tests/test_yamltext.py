"""YAML that a cluster's tenants may write never reaches the C composer unbounded."""

from __future__ import annotations

import pytest
import yaml

from belay.engine.wire import faultconfig, schedulerconf, yamltext
from belay.engine.wire.errors import WireError

DEEP = {
    "flow lists": "a: " + "[" * 60_000,
    "closed flow lists": "a: " + "[" * 30_000 + "]" * 30_000,
    "flow mappings": "{a: " * 20_000,
    "block lists on one line": "- " * 60_000 + "x",
    "complex keys": "? " * 60_000 + "x",
    "block mappings": "".join(f"{' ' * level}a:\n" for level in range(500)),
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_deep_nesting_is_refused_by_level(text: str) -> None:
    with pytest.raises(ValueError, match="deeper than 64 levels at line"):
        yamltext.load(text)


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_a_deep_scheduler_configuration_states_nothing(text: str) -> None:
    assert schedulerconf.parse(text) == schedulerconf.SchedulerConf()
    with pytest.raises(WireError, match="volcano-scheduler"):
        schedulerconf.arguments(text)


def test_aliases_that_multiply_are_refused() -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(ValueError, match="more than 100000 values"):
        yamltext.load("\n".join(rows))


def test_an_alias_of_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="contains itself"):
        yamltext.load("a: &a [*a]")


def test_plain_configurations_are_read_as_before() -> None:
    text = 'actions: "enqueue, preempt"\ntiers: &t\n- plugins: [{name: gang, enablePreemptable: false}]\nmore: *t\n'
    assert yamltext.load(text, yaml.CBaseLoader) == yaml.load(text, Loader=yaml.CBaseLoader)
    assert schedulerconf.parse(text).runs("preempt")


def test_a_deep_manual_policy_is_named_and_ignored() -> None:
    body = {
        "metadata": {"namespace": "cluster-system", "name": "clusterd-config-cm"},
        "data": {faultconfig.MANUAL_NAME: "[" * 60_000},
    }
    config, problems = faultconfig.read([body])
    assert config.manual is None
    assert any("deeper than 64 levels" in str(problem) for problem in problems)
