"""Who holds a chip: named in full where two schedulers gave it in the same second."""

from __future__ import annotations

import msgspec

from belay.engine.cli.holders import holders_of
from belay.engine.model.diagnostics import ObjectKey
from tests import worlds
from tests.test_dra_placement import allocated, asking, claim


def test_both_holders_of_a_chip_are_named() -> None:
    world = worlds.world(2, pods=[worlds.pod("by-plugin", node="n0", chips=(3,))])
    objects = {
        ObjectKey("resource.k8s.io/v1", "ResourceClaim", "train", name): allocated(claim(name, asking()), host, [chip])
        for name, host, chip in (("by-claim", "n0", 3), ("elsewhere", "n1", 3), ("beside", "n0", 4))
    }
    observed = msgspec.structs.replace(world, objects={**world.objects, **objects})
    (pod,) = observed.pods
    assert holders_of(observed, "n0", "Ascend910-3") == [pod, "ResourceClaim train/by-claim"]
    assert holders_of(observed, "n0", "Ascend910-4") == ["ResourceClaim train/beside"]
    assert holders_of(observed, "n0", "Ascend910-5") == []
