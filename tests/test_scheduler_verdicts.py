"""Random waiting pods on random nodes: a real kube-scheduler and Belay hold the same nodes fit.

A sample of the worlds that `make soak` (VERDICTS) judges by the thousand.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests import scheduler_cases
from tests.control_planes import minor
from tests.needs import assets
from tests.scheduler_verdicts import both, judge

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(300)]

#: The formats of the scheduler's configuration and of pods that use everything, such as resources of the whole pod.
FIRST = 37
SEEDS = range(1, 9)


def test_kube_scheduler_and_belay_hold_the_same_nodes_fit(kubeconfig: str, tmp_path: Path) -> None:
    if minor(assets("kube-scheduler") / "kube-scheduler") < FIRST:
        pytest.skip(f"the pods use what came with 1.{FIRST}")

    async def worlds() -> tuple[list[str], Counter[bool]]:
        found: list[str] = []
        fits: Counter[bool] = Counter()
        async with both(Path(kubeconfig), tmp_path) as (kube, extender):
            for seed in SEEDS:
                cases, differences = await judge(kube, extender, seed)
                found += [f"seed {seed}: {one}" for one in differences]
                names = {pod["metadata"]["name"] for pod in scheduler_cases.world(seed).waiting}
                some = sum(bool(nodes) for name, nodes in extender.passed.items() if name in names)
                fits.update({True: some, False: cases - some})
        return found, fits

    differences, fits = asyncio.run(worlds())
    assert not differences, "\n".join(differences)
    assert min(fits[True], fits[False]) > sum(fits.values()) // 5, f"the pods are no close calls: {fits}"


def test_every_feature_is_in_the_worlds_and_on_the_page() -> None:
    used = {feature for seed in SEEDS for names in scheduler_cases.world(seed).features.values() for feature in names}
    assert used == set(scheduler_cases.FEATURES)
    page = (Path(__file__).resolve().parents[1] / "docs" / "kubernetes.md").read_text()
    lacking = [name for name in scheduler_cases.FEATURES if f"`{name}`" not in page]
    assert not lacking, "docs/kubernetes.md says of each case what is honoured"
