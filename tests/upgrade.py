"""``make upgrade-test REF=v0.1.0``: an older version beside this one, in both orders, on one cluster.

The engine is upgraded first and the agents after it, then the engine goes back and the agents after it, so that each
runs beside the other's older and newer version, and a downgrade of the whole is walked too. The older version is what
Git has at REF (the commit of the changelog's newest released version where REF is not given); both run in this
environment, or the older one with ``OLD_PYTHON``. The API server is a real kube-apiserver where ``KUBEBUILDER_ASSETS``
names one, else the sandbox's. In each step

- a job is declared in Git, bound and runs; what ran before has the same pods on the same chips;
- a chip breaks and is reset once by its epoch; another one is isolated, and is back when it has healed;
- a witness of its own sees no chip with two owners and no epoch that ran twice;
- both versions read what is stored: `belay status` of each says the revision in force.

At the end, both versions' recorded passes are replayed by this version. ``KEEP=1`` keeps the folder with all logs;
``RECORD=tests/samples/upgrade/0.1.0`` keeps what the older version wrote, which `tests/test_upgrade.py` reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from belay.engine.errors import InputError
from belay.engine.kube import CONFIGMAP, POD, Kube, cancel_all
from belay.engine.replay.recording import replay
from belay.engine.wire import names, sync
from tests import releases
from tests.chaos.kubelets import JOBS
from tests.chaos.live import chips_of
from tests.chaos.rounds import LASTING, RESET, Player, owner
from tests.chaos.site import CHIPS, ROOT, Site, Size, import_root, module_of, remove, site
from tests.chaos.witness import Witness
from tests.soak.histories import _job

WITHIN = 180.0
"""Seconds for one thing to come true: a few on an idle machine."""
SIZE = Size(nodes=6, controllers=2, workers=2, servers=1)
ENGINE, AGENTS = ("controller", "worker", "server"), ("agent",)
_MAP_COMMIT = re.compile(r"[Cc]ommit `([0-9a-f]{7,40})`")
Place = tuple[str, str, tuple[str, ...]]


def newest_release(changelog: str) -> str:
    """The commit or tag of the newest version that the changelog dates.

    Raises:
        ValueError: it dates none.
    """
    for part in re.split(r"^(?=## )", changelog, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        found = re.fullmatch(r"## (\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d\)", head)
        if found:
            commit = _MAP_COMMIT.search(body[:400])
            return commit[1] if commit else f"v{found[1]}"
    raise ValueError("CHANGELOG.md dates no version: name one, REF=…")


def differing(tree: Path) -> list[str]:
    """Packages that the older version locks and this environment has in another version, or not at all."""
    found = []
    for name, version in re.findall(r"^([a-z0-9.-]+)==(\S+)", (tree / "requirements.lock").read_text(), re.MULTILINE):
        try:
            here = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another system, or nothing imports it any more
        if here != version:
            found.append(f"{name} {version} (here {here})")
    return found


class Walk:
    """The steps on one site."""

    def __init__(self, made: Site, kube: Kube, witness: Witness, player: Player) -> None:
        self.site, self.kube, self.witness, self.player = made, kube, witness, player
        self.jobs = 0
        self.chip = 0

    async def step(self, title: str) -> None:
        """Declare, bind, reset, isolate, release; and everything of before is as it was."""
        began = time.monotonic()
        before = await self.places()
        self.jobs += 1
        name = f"job-{self.jobs}"
        self.player.files[f"desired/jobs/{name}.yaml"] = _job(name, 2, 1, "grace").encode()
        self.player.push()
        await self.until(self.runs, f"{title}: {name} runs, and the revision is in force")
        await self.reset(title)
        await self.isolation(title)
        after = await self.places()
        lost = {key: (place, after.get(key)) for key, place in before.items() if after.get(key) != place}
        assert not lost, f"{title}: what ran was moved: {lost}"
        self.witness.check()
        sys.stdout.write(f"{title}: {len(after)} pods as they were, {time.monotonic() - began:.0f} s\n")
        sys.stdout.flush()

    async def places(self) -> dict[str, Place]:
        """By pod: UID, node, chips."""
        found = {}
        for pod in (await self.kube.list(POD, JOBS)).items:
            if pod["spec"].get("nodeName"):
                meta = pod["metadata"]
                found[meta["name"]] = (meta["uid"], pod["spec"]["nodeName"], tuple(sorted(chips_of(pod))))
        return found

    async def runs(self) -> str:
        """What is missing until every declared job runs under the newest revision."""
        stored = await self.kube.get(CONFIGMAP, names.SYNC, names.SYSTEM)
        applied = ((stored or {}).get("data") or {}).get(sync.APPLIED, "")
        if applied != self.site.repository.head():
            return f"revision {applied[:12] or 'none'} is in force"
        pods = (await self.kube.list(POD, JOBS)).items
        for path in self.player.files:
            if path.startswith("desired/jobs/"):
                mine = [pod for pod in pods if owner(pod) == Path(path).stem]
                ready = [pod for pod in mine if (pod.get("status") or {}).get("phase") == "Running"]
                if len(mine) != 2 or len(ready) != 2:
                    return f"{Path(path).stem}: {len(ready)} of {len(mine)} pods run"
        return ""

    async def free_chip(self) -> tuple[str, str]:
        """A chip of a node without pods: chips are reset with all others of their ring."""
        used = {node for _, node, _ in (await self.places()).values()}
        free = [
            (node, f"Ascend910-{number}") for node in self.site.nodes for number in range(CHIPS) if node not in used
        ]
        self.chip += 1
        return free[-(self.chip % len(free)) - 1]

    async def reset(self, title: str) -> None:
        """A fault that a reset heals: it is reset, once, and is back."""
        node, chip = await self.free_chip()
        resets = len(self.site.hardware[node].resets())
        self.broken(node, chip, RESET)

        async def healed() -> str:
            if chip in self.site.hardware[node].read():
                return "still broken"
            return "isolated" if f"{node}/{chip}" in self.witness.isolated else ""

        await self.until(healed, f"{title}: {node}/{chip} is reset and back")
        assert len(self.site.hardware[node].resets()) > resets, f"{title}: {node}/{chip} healed without a reset"

    async def isolation(self, title: str) -> None:
        """A fault that stays: its chip is out while it does, and no longer."""
        node, chip = await self.free_chip()
        self.broken(node, chip, LASTING)
        key = f"{node}/{chip}"
        await self.until(self._is(lambda: key in self.witness.isolated), f"{title}: {key} is isolated")
        with self.site.hardware[node].changed() as content:
            content.clear()
        await self.until(self._is(lambda: key not in self.witness.isolated), f"{title}: {key} is back")

    def broken(self, node: str, chip: str, code: str) -> None:
        """The chip reports this fault from now on."""
        with self.site.hardware[node].changed() as content:
            content[chip] = {"codes": [code]}

    def _is(self, condition: Callable[[], bool]) -> Callable[[], Any]:
        async def missing() -> str:
            return "" if condition() else "not yet"

        return missing

    async def until(self, missing: Callable[[], Any], what: str) -> None:
        """Wait until nothing is missing."""
        ends = time.monotonic() + WITHIN
        lacks = "nothing was looked at"
        while time.monotonic() < ends:
            self.witness.check()
            with contextlib.suppress(Exception):  # the API server may be away for a moment
                lacks = await missing()
                if not lacks:
                    return
            await asyncio.sleep(0.25)
        raise AssertionError(f"{what}: not within {WITHIN:.0f} s: {lacks}\n{self.site.log_ends()}")

    def read_by(self, title: str, *trees: Path) -> None:
        """Every version reads the status that is stored."""
        head = self.site.repository.head()
        for tree in trees:
            done = subprocess.run(
                [sys.executable, "-P", "-m", module_of(tree, "belay.engine.cli"), "status", "-o", "json",
                 "--kubeconfig", str(self.site.kubeconfig)],
                env={**os.environ, "PYTHONPATH": import_root(tree)}, capture_output=True, text=True, timeout=120,
                check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{title}: belay status of {tree}: {done.stderr[-500:]}"
            assert json.loads(done.stdout)["applied"] == head, f"{title}: {tree} reads another revision"


async def walk(made: Site, old: Path, assets: Path | None) -> None:
    """All steps, from the older version and back to it."""
    made.start()
    keeper = asyncio.create_task(made.keep())
    try:
        async with Kube.from_config(str(made.kubeconfig)) as kube, Witness(kube, made.hardware).watching() as witness:
            one = Walk(made, kube, witness, Player(made, kube, witness))
            await one.step("old engine, old agents")
            if wanted := os.environ.get("RECORD"):
                await record(made, kube, Path(wanted))
            define(made.kubeconfig, ROOT, assets)
            made.change(ENGINE, ROOT)
            await one.step("new engine, old agents")
            one.read_by("after the engine's upgrade", old, ROOT)
            made.change(AGENTS, ROOT)
            await one.step("new engine, new agents")
            made.change(ENGINE, old)
            await one.step("old engine, new agents")
            one.read_by("after the engine's downgrade", old, ROOT)
            made.change(AGENTS, old)
            define(made.kubeconfig, old, assets)
            await one.step("old engine, old agents again")
            made.change(AGENTS, ROOT)
            await one.step("agents first: old engine, new agents")
            define(made.kubeconfig, ROOT, assets)
            made.change(ENGINE, ROOT)
            await one.step("and then the new engine")
            sys.stdout.write(f"{witness.bound} bindings, {witness.resets} resets, nothing twice\n")
    finally:
        await cancel_all(keeper)


def define(kubeconfig: Path, tree: Path, assets: Path | None) -> None:
    """The definitions of a version, as its upgrade notes say to apply them first; objects must survive it."""
    if assets is None:
        return  # the sandbox's API server has them built in
    folder = tree / "deploy" / "crds"
    command = [str(assets / "kubectl"), "--kubeconfig", str(kubeconfig), "apply", "--server-side", "--force-conflicts"]
    done = subprocess.run([*command, "-f", str(folder)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"definitions of {tree}: {done.stderr[-500:]}"
    stored = subprocess.run(
        [str(assets / "kubectl"), "--kubeconfig", str(kubeconfig), "get", "crd", "-o", "json"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    for one in json.loads(stored.stdout)["items"]:
        versions = {version["name"] for version in one["spec"]["versions"]}
        assert set(one["status"]["storedVersions"]) <= versions, one["metadata"]["name"]


async def record(made: Site, kube: Kube, folder: Path) -> None:
    """What the older version has written: its ConfigMaps, and a pass that acted, as samples of that version."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for namespace in (names.SYSTEM, names.NODES, names.DEVICE_NAMESPACE, names.NODE_NAMESPACE):
        for item in (await kube.list(CONFIGMAP, namespace)).items:
            if item["metadata"]["name"].startswith(("belay-", names.DEVICE_PREFIX, names.NODE_PREFIX)):
                item["metadata"].pop("managedFields", None)
                found.append({"apiVersion": "v1", "kind": "ConfigMap", **item})
    found.sort(key=lambda item: (item["metadata"]["namespace"], item["metadata"]["name"]))
    (folder / "objects.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": found}, indent=0))
    passes = sorted(made.folder.rglob("*.belay.json.gz"), key=lambda file: file.stat().st_size)
    (folder / "pass.belay.json.gz").write_bytes(passes[-1].read_bytes())


def replays(made: Site) -> None:
    """Passes that either version recorded: derived again, or the reason."""
    same, other, refused = 0, 0, []
    for file in sorted(made.folder.rglob("*.belay.json.gz")):
        try:
            found = replay(file)
        except InputError as error:
            refused.append(str(error))
            continue
        same, other = same + found.same, other + (not found.same)
        assert found.same or found.why, f"{file}: differs, and nothing says why"
    assert same + other, "no pass was recorded"
    sys.stdout.write(f"{same} recorded passes derived again alike, {other} otherwise, {len(refused)} refused\n")
    assert not refused, refused[0]


def main() -> None:
    """One walk; ends with 1 and the reason where something was lost."""
    ref = os.environ.get("REF") or newest_release((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    named = os.environ.get("KUBEBUILDER_ASSETS")
    assets = Path(named) if named else None
    folder = Path(tempfile.mkdtemp(prefix="belay-upgrade-"))
    old = folder / "old"
    try:
        releases.extract(ref, old)
        odd = differing(old)
        if odd and not os.environ.get("OLD_PYTHON"):
            sys.stdout.write(
                f"{ref} runs with other versions than it locks: {', '.join(odd[:5])}; OLD_PYTHON names its own\n"
            )
        sys.stdout.write(
            f"{ref} beside this tree, on {'kube-apiserver' if assets else 'the sandbox'}; logs: {folder}\n"
        )
        sys.stdout.flush()
        with site(folder / "site", SIZE, 1, assets=assets) as made:
            made.pythons = {old: os.environ["OLD_PYTHON"]} if os.environ.get("OLD_PYTHON") else {}
            for kind in (*ENGINE, *AGENTS):
                made.trees[kind] = old
            asyncio.run(walk(made, old, assets))
            replays(made)
    except (AssertionError, releases.ReleaseError) as error:
        sys.exit(f"{error}\nlogs: {folder}")
    if not os.environ.get("KEEP"):
        remove(folder)


if __name__ == "__main__":
    main()
