"""Chip generations: what each product's chips are, and what follows."""

from __future__ import annotations

import pytest

from belay.engine.documents import Product
from belay.engine.load import load
from belay.engine.model.generations import LOGICAL_PREFIXES, Generation, generation_of


def _spec(**given: object) -> dict[str, object]:
    return {
        "apiVersion": "belay.dev/v1alpha1",
        "kind": "Product",
        "metadata": {"name": "own"},
        "spec": {
            "title": "Own server", "resource": "huawei.com/npu", "devicePrefix": "npu-", "chipsPerNode": 8,
            "placement": {"handler": "base", "max": 8}, **given,
        },
    }  # fmt: skip


def test_every_shipped_server_states_its_generation() -> None:
    shipped = load({}).desired
    for name, declared in shipped.products.items():
        spec = declared.document.spec
        assert (spec.generation is not None) == bool(spec.device_prefix), name
        assert declared.document.generation == generation_of(spec.device_prefix), name


def test_a_row_without_a_generation_takes_that_of_its_device_prefix() -> None:
    assert Product.model_validate(_spec()).generation is Generation.ASCEND950
    assert Product.model_validate(_spec(devicePrefix="Other-")).generation is Generation.ASCEND910


def test_a_generation_with_foreign_device_names_is_refused() -> None:
    assert Product.model_validate(_spec(generation="Ascend950")).generation is Generation.ASCEND950
    with pytest.raises(ValueError, match="devicePrefix of Ascend910 must be Ascend910-"):
        Product.model_validate(_spec(generation="Ascend910"))


def test_only_ascend950_has_a_unified_bus_and_logical_names() -> None:
    assert [g for g in Generation if g.unified_bus] == [g for g in Generation if g.logical_names] == ["Ascend950"]
    assert {"npu-"} == LOGICAL_PREFIXES
