"""Random faults × random revisions: every ``True`` that a reader sees is held against the world.

The engine runs whole on virtual time (``tests/sim``). Every other second an independent function reads what a person
would be shown and compares it with the API server's objects and with Git's files; it shares no code with planner and
status. A status may be as old as a pass may be (30 s), so a contradiction counts once it has lasted longer. In some
cases a person deletes meanwhile what Git declares.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from belay.engine.sandbox.api.errors import ApiError
from belay.engine.status.status_reader import read_status
from belay.engine.wire import names
from tests.sim.clock import Clock, run
from tests.sim.clock import seed as begin
from tests.sim.world import World

Json = dict[str, Any]
ROUNDS = 5
"""Cases of one history: a fault and a revision each, on the same world."""
LONGEST_LIE = 45.0
"""Seconds for which a status may contradict the world: what a pass may be late, and two looks."""
LOOKS_EVERY = 2.0
HEAL_SECONDS = 900.0
LONGEST_WAIT = 170.0
"""Seconds after which everything that was refused has been tried again."""
FAULTS = (
    "none", "refuse configmaps", "refuse services", "refuse isolations", "lease stolen", "lease renewed by a stranger",
    "workers stopped", "controllers stopped", "redis away", "api away", "worker clock", "controller clock",
)  # fmt: skip
ANSWERS = (
    (403, "Forbidden", "is forbidden: exceeded quota: q, requested: count/objects=1, used: 5, limited: 5"),
    (403, "Forbidden", 'is forbidden: User "belay" cannot patch resource'),
    (400, "BadRequest", 'admission webhook "w.example.com" denied the request: no'),
    (422, "Invalid", "is invalid: spec: Invalid value"),
    (500, "InternalError", 'Internal error occurred: failed calling webhook "w.example.com": EOF'),
)
HEAD = "apiVersion: belay.dev/v1alpha1\n"
SHUT = f"""{HEAD}kind: SafetyBudget
metadata: {{name: shut}}
spec: {{limits: [{{actions: [DeleteObject], per: cluster, max: 0, window: 1h}}]}}
""".encode()
BROKEN = f"{HEAD}kind: Isolatoin\nmetadata: {{name: broken}}\n".encode()
ISOLATIONS = "isolations.belay.dev"
STORED = {
    "ConfigMap": "configmaps", "Service": "services", "Isolation": ISOLATIONS,
    "SafetyBudget": "safetybudgets.belay.dev",
}  # fmt: skip
"""Under which name the API server's store keeps each kind."""


class TruthReport(msgspec.Struct):
    """One history: its cases, the ``True`` that were held against the world, what was shown, and how it struck."""

    seed: int
    cases: int
    checked: int
    told: dict[str, int]
    struck: list[str]


class Refusing:
    """Makes the API server refuse writes of one kind; the cluster's own records in ``belay-system`` stay writable."""

    def __init__(self, world: World) -> None:
        self.plural, self.answer, self.ended = "", ANSWERS[0], -LONGEST_WAIT
        self._real = world.api.answer
        world.api.answer = self._asked  # type: ignore[method-assign]

    def end(self, now: float) -> None:
        """Let writes through again."""
        self.plural, self.ended = "", now

    def stops(self, plural: str, now: float) -> bool:
        """Whether the engine cannot write these objects, or may still wait for its next try of one."""
        return self.plural == plural or now - self.ended < LONGEST_WAIT

    def _asked(self, method: str, path: str, params: Mapping[str, str], data: bytes, kind: str) -> Any:
        if self.plural and method != "GET" and f"/{self.plural}/" in f"{path}/" and f"/{names.SYSTEM}/" not in path:
            code, reason, text = self.answer
            raise ApiError(code, reason, f"{self.plural} {text}")
        return self._real(method, path, params, data, kind)


class Truth:
    """The independent look: what is shown, and what of it the world contradicts."""

    def __init__(self, world: World, refusing: Refusing) -> None:
        self.world, self.refusing = world, refusing
        self.files: dict[str, dict[str, bytes]] = {}
        self.declared: dict[str, list[Json]] = {}
        self.checked = 0
        self.told: dict[str, int] = {}
        self._since: dict[str, float] = {}

    def pushed(self) -> None:
        """Remember what the newest revision holds."""
        repository = self.world.repository
        revision = f"{repository.number:040d}"
        self.files[revision] = dict(repository.files)
        self.declared[revision] = list(documents(repository.files))

    def look(self) -> None:
        """Hold every True against the world. Raises AssertionError for one that was contradicted for too long."""
        now = self.world.clock.now
        wrong = dict(self._contradictions())
        self._since = {claim: self._since.get(claim, now) for claim in wrong}
        for claim, since in self._since.items():
            assert now - since <= LONGEST_LIE, f"{claim} for {now - since:.0f} s, but {wrong[claim]}"

    def status(self) -> Any:
        maps = [one for one in self.world.api.objects("configmaps") if one["metadata"]["namespace"] == names.SYSTEM]
        return read_status(maps, self.world.clock.wall)

    def _contradictions(self) -> Iterator[tuple[str, str]]:
        status = self.status()
        for row in status.conditions:
            key = f"{row['type']}={row['status']} {row['reason']}"
            self.told[key] = self.told.get(key, 0) + 1
            if row["status"] != "True":
                continue
            self.checked += 1
            if wrong := self._of_sync(row["type"], row["reason"], status.applied, status.attempted):
                yield f"belay-sync says {key}", wrong
        # the condition is part of the object: where it cannot be written, none can be mended
        stuck = self.refusing.stops("isolations", self.world.clock.now)
        for body in () if stuck else self.world.api.objects(ISOLATIONS):
            for row in (body.get("status") or {}).get("conditions") or []:
                if row["status"] == "True" and not status.no_pass:
                    self.checked += 1
                    name = body["metadata"]["name"]
                    if wrong := self._of_isolation(row["type"], body, status.applied):
                        yield f"Isolation {name} says {row['type']}", wrong

    def _of_sync(self, kind: str, reason: str, applied: str, attempted: str) -> str:
        match kind:
            case "Applied" | "Ready":
                return self.not_in_force(applied, with_broken=kind == "Ready" or reason == "Everything")
            case "DocumentsRefused":
                return "" if BROKEN in self.files.get(attempted, {}).values() else "every document can be read"
            case "PruneHeld":
                return "" if list(self._undeclared(applied)) else "nothing undeclared is there"
        return f"this test cannot check {kind}"

    def _of_isolation(self, kind: str, body: Json, applied: str) -> str:
        declared = {
            doc["metadata"]["name"]: doc for doc in self.declared.get(applied, []) if doc["kind"] == "Isolation"
        }
        found = declared.get(body["metadata"]["name"])
        if kind == "Ignored":
            return "Git declares it" if found is not None else ""
        if found is None:
            return "Git does not declare it"
        same = body["spec"]["reason"] == found["spec"]["reason"]
        return "" if same else f"its reason is {body['spec']['reason']}, Git declares {found['spec']['reason']}"

    def not_in_force(self, revision: str, *, with_broken: bool) -> str:
        """What of a revision is not in the cluster as declared; empty when all of it is."""
        files = self.files.get(revision)
        if files is None:
            return f"no push was {revision or 'nothing'}"
        if with_broken and BROKEN in files.values():
            return "a document cannot be read"
        for doc in self.declared[revision]:
            meta = doc["metadata"]
            live = self.world.api.find(STORED[doc["kind"]], meta["name"], meta.get("namespace", ""))
            if live is None:
                return f"{doc['kind']} {meta['name']} does not exist"
            if live["metadata"].get("deletionTimestamp") or not matches(doc, live):
                return f"{doc['kind']} {meta['name']} is not as declared"
        if BROKEN in files.values():
            return ""  # the broken file may have declared what else is there, so it stays, as ExceptRefused says
        return next((f"{one} is there and not declared" for one in self._undeclared(revision)), "")

    def _undeclared(self, revision: str) -> Iterator[str]:
        wanted = {
            (doc["kind"], doc["metadata"].get("namespace", ""), doc["metadata"]["name"])
            for doc in self.declared.get(revision, [])
        }
        for kind, plural in STORED.items():
            for live in self.world.api.objects(plural):
                meta = live["metadata"]
                ours = (meta.get("labels") or {}).get("app.kubernetes.io/managed-by") == "belay"
                applied = "belay.dev/applied-digest" in annotations_of(live)
                if ours and applied and (kind, meta.get("namespace", ""), meta["name"]) not in wanted:
                    yield f"{kind} {meta['name']}"


def annotations_of(live: Json) -> Json:
    """The annotations of a live object."""
    return live["metadata"].get("annotations") or {}


def documents(files: Mapping[str, bytes]) -> Iterator[Json]:
    """The documents of a revision, read here and not by the engine; a broken one is none."""
    for path, body in sorted(files.items()):
        if body != BROKEN and path.startswith(("desired/", "policies/")):
            yield from (doc for doc in yaml.load_all(body, yaml.CSafeLoader) if doc)


def matches(declared: Json, live: Json) -> bool:
    """Whether the live object is as declared in the fields that these revisions change."""
    match declared["kind"]:
        case "ConfigMap":
            return bool(live.get("data") == declared["data"])
        case "Service":
            return bool(live["spec"]["ports"][0]["port"] == declared["spec"]["ports"][0]["port"])
        case "Isolation":
            return bool(live["spec"]["reason"] == declared["spec"]["reason"])
    return True


def revision(chance: random.Random, before: Mapping[str, bytes], number: int) -> dict[str, bytes]:
    """The files of the next push: some change, come, go, are misspelt, or lie in a namespace that does not exist."""
    files = {"desired/keep.yaml": config_map("keep", "train", 0)}
    files |= {path: body for path, body in before.items() if path.startswith("desired/") and chance.random() < 0.8}
    for _ in range(chance.randrange(1, 5)):
        name = f"{chance.choice('abcdef')}"
        kind = chance.choice(("ConfigMap", "ConfigMap", "Service", "Isolation"))
        path = f"desired/{kind.lower()}-{name}.yaml"
        if kind == "ConfigMap":
            files[path] = config_map(name, "nowhere" if chance.random() < 0.06 else "train", number)
        elif kind == "Service":
            spec = f"spec: {{selector: {{app: {name}}}, ports: [{{port: {1000 + number}}}]}}\n"
            files[path] = (
                f"apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: train}}\n{spec}".encode()
            )
        else:
            spec = f"spec: {{nodes: [node-0], reason: r{number}}}\n"
            files[path] = f"{HEAD}kind: Isolation\nmetadata: {{name: {name}}}\n{spec}".encode()
    files.pop("desired/broken.yaml", None)
    if chance.random() < 0.15:
        files["desired/broken.yaml"] = BROKEN
    if chance.random() < 0.25:
        files["policies/budget.yaml"] = SHUT
    return files


def config_map(name: str, namespace: str, number: int) -> bytes:
    """A ConfigMap document."""
    return (
        f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: {namespace}}}\n"
        f"data: {{v: 'n{number}'}}\n"
    ).encode()


def history(seed: int) -> TruthReport:
    """Run one history; raises AssertionError with the first True that was contradicted for too long."""
    folder = Path(tempfile.mkdtemp(prefix="belay-truth-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    begin(seed)
    clock = Clock()
    try:
        report: TruthReport = run(clock, _history(seed, folder, clock))
        return report
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _history(seed: int, folder: Path, clock: Clock) -> TruthReport:
    chance = random.Random(f"truth/{seed}")
    files = revision(chance, {}, 1)
    world = World(seed, folder, clock, files, nodes=1, pairs=chance.choice((1, 1, 2)), resync=10.0)
    world.stopped.add("agent-node-0")  # what a node does is not the question here
    world.quiet = True  # workers look five times a second for messages: conditions are judged by tens of seconds
    refusing = Refusing(world)
    truth = Truth(world, refusing)
    struck: list[str] = []
    truth.pushed()
    keeper = asyncio.get_running_loop().create_task(world.keep())
    try:
        await _watch(truth, 10.0)
        for number in range(2, ROUNDS + 2):
            fault = chance.choice(FAULTS)
            struck.append(fault)
            early = chance.random() < 0.5
            if early:
                files = _push(world, truth, revision(chance, files, number))
                await _watch(truth, chance.uniform(0.0, 3.0))
            end = _strike(world, refusing, chance, fault)
            await _watch(truth, chance.uniform(0.0, 10.0))
            if chance.random() < 0.4 and (drifted := _drift(world, chance)):
                struck[-1] += f", {drifted} deleted by hand"
            if not early:
                files = _push(world, truth, revision(chance, files, number))
            if chance.random() < 0.1 and world.api.find("namespaces", "nowhere") is None:
                world._call("POST", "/api/v1/namespaces", {"metadata": {"name": "nowhere"}})
            await _watch(truth, chance.uniform(20.0, 110.0))
            end()
            await _watch(truth, chance.uniform(0.0, 15.0))
        await _heal(world, truth, ROUNDS + 2)
        world.check()
        if keeper.done():
            keeper.result()
    finally:
        keeper.cancel()
    return TruthReport(seed, ROUNDS, truth.checked, dict(sorted(truth.told.items())), struck)


def _push(world: World, truth: Truth, files: dict[str, bytes]) -> dict[str, bytes]:
    world.repository.push(files)
    truth.pushed()
    return files


async def _watch(truth: Truth, seconds: float) -> None:
    """Let time pass, and look every other second: what counts is what lasts."""
    ends = truth.world.clock.now + seconds
    while truth.world.clock.now < ends:
        await asyncio.sleep(LOOKS_EVERY)
        truth.look()


def _strike(world: World, refusing: Refusing, chance: random.Random, fault: str) -> Callable[[], None]:
    """Begin a fault; returns what ends it."""
    outside = world.outside
    word, _, rest = fault.partition(" ")
    if word == "refuse":
        refusing.plural, refusing.answer = rest, chance.choice(ANSWERS)
        return lambda: refusing.end(world.clock.now)
    if word == "lease":
        return _steal(world, renewed="renewed" in fault)
    if fault.endswith("stopped"):
        ended = [name for name in world.processes if name.startswith(word.removesuffix("s"))]
        world.stopped.update(ended)
        for name in ended:
            world.processes[name].kill(fault)
        return lambda: world.stopped.difference_update(ended)
    if fault == "redis away":
        outside.redis_down = True
        world.memory.flushall()
        return lambda: setattr(outside, "redis_down", False)
    if fault == "api away":
        outside.api_down = True
        return lambda: setattr(outside, "api_down", False)
    if fault.endswith("clock"):
        moved = [process for name, process in world.processes.items() if name.startswith(word)]
        for process in moved:
            process.offset = chance.choice((-600.0, -20.0, 20.0, 600.0))
        return lambda: [setattr(process, "offset", 0.0) for process in moved] and None
    return lambda: None


def _drift(world: World, chance: random.Random) -> str:
    """A person deletes something that Git declares; returns what, empty where nothing is there.

    Passes make it again; while none comes, no status may go on saying that everything is in force.
    """
    kind = chance.choice(("ConfigMap", "Service"))
    there = [one for one in world.api.objects(STORED[kind]) if "belay.dev/applied-digest" in annotations_of(one)]
    if not there:
        return ""
    meta = chance.choice(there)["metadata"]
    world.api.drop(STORED[kind], meta["name"], meta["namespace"])
    return f"{kind} {meta['name']}"


def _steal(world: World, *, renewed: bool) -> Callable[[], None]:
    """A stranger takes the shard's Lease, for ever or renewing it; giving it up is the end."""

    def write(holder: str) -> None:
        live = world.api.find("leases", "belay-shard-main", names.SYSTEM)
        if live is None:
            return
        live["spec"] |= {"holderIdentity": holder, "leaseDurationSeconds": 2**31 - 1}
        live["spec"]["leaseTransitions"] = int(live["spec"].get("leaseTransitions") or 0) + (1 if holder else 0)
        world.api.put("leases", live)

    async def keep() -> None:
        while True:
            write("evil")
            await asyncio.sleep(5.0)

    if not renewed:
        write("evil")
        return lambda: write("")
    task = asyncio.get_running_loop().create_task(keep())

    def end() -> None:
        task.cancel()
        write("")

    return end


async def _heal(world: World, truth: Truth, number: int) -> None:
    """Faults are over and the last revision is a plain one: it must be said to be in force, since it comes to be."""
    _push(world, truth, {"desired/keep.yaml": config_map("keep", "train", number)})
    newest = f"{world.repository.number:040d}"
    ends = world.clock.now + HEAL_SECONDS
    while world.clock.now < ends:
        await _watch(truth, 5.0)
        status = truth.status()
        rows = {row["type"]: row for row in status.conditions}
        ready = rows.get("Ready", {}).get("status")
        if status.applied != newest or ready is None:
            continue
        if ready == "True" and not truth.not_in_force(newest, with_broken=True):
            return
        if rows["Applied"]["reason"] == "HeldBack" and list(truth._undeclared(newest)):
            return  # the hour's deletions are spent
    raise AssertionError(f"not healed after {HEAL_SECONDS:.0f} s: {json.dumps(truth.status().conditions)[:600]}")
