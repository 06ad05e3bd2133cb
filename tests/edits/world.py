"""The sample cluster with the samples in force and at work, and the effect of an edit of one file on it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from belay.engine.documents import Desired
from belay.engine.load import Loaded, load_directory
from belay.engine.load.cache import content_id
from belay.engine.model import actions as act
from belay.engine.model.actions import kind_of
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.plan import plan
from belay.engine.store import RevisionRecord
from tests.edits.mutations import Edit, edited
from tests.edits.reader import read
from tests.golden.stories import ROOT, sample_world
from tests.tree_steps import TreeSteps

_ISOLATIONS = "desired/isolations.yaml"
#: Chips with a fault that needs no action; a policy may rightly decide otherwise.
FAULTS = {("node-6", 5): ("80E18402", "NotHandleFault"), ("node-2", 3): ("80E18402", "NotHandleFault")}
DISRUPTIVE = (
    act.DeleteObject, act.EvictPod, act.IsolateChip, act.IsolateNode, act.ResetChips, act.PartitionChip, act.ScaleJob,
)  # fmt: skip


def samples() -> dict[str, bytes]:
    """Every sample of a document below ``desired/`` and ``policies/``; the isolation is put in force."""
    files = {path: data for path, data in load_directory(ROOT).items() if path.startswith(("desired/", "policies/"))}
    head, mark, body = files[_ISOLATIONS].partition(b"#\n# apiVersion")
    assert mark, "the sample of an Isolation is written as a comment"
    files[_ISOLATIONS] = head + b"\n".join(line.removeprefix(b"# ") for line in (b"# apiVersion" + body).split(b"\n"))
    return files


class EditedWorld:
    """What the samples declare, a world at rest under them, and the plans of edits."""

    def __init__(self) -> None:
        self.files = samples()
        self.blobs = {path: content_id(data) for path, data in self.files.items()}
        self.steps = TreeSteps(shipped={})  # all of it is in the repository itself
        self.before = self.steps.push(self.files)
        self.memory = self.steps.memory
        self.declared = {path: read(text).declared or {} for path, text in self.files.items()}
        assert not [one for one in self.before.diagnostics if one.severity == "error"]
        world = sample_world(files=self.files)
        for (node, chip), (code, level) in FAULTS.items():
            world.fault(node, chip, code, level)
        world.until_quiet()
        self.observed, self.now = world.observer.observed(), world.now
        assert not list(_disruptions(plan(self.before.desired, self.observed, self.now))), "the world is at rest"
        self.jobs = {manifest.key.name for manifest in self.before.desired.manifests}
        self.contents = _contents(self.before.desired)
        self._plans: dict[tuple[Any, ...], tuple[act.AnyAction, ...]] = {}

    def check(self, edit: Edit, *, twice: bool = False) -> tuple[bool, int]:
        """Make an edit in the running world; return whether it was refused, and how many objects it rightly deletes.

        Raises AssertionError when anything is done that a correct reader of the text would not do.
        """
        text = edited(self.files[edit.path], edit)
        if text == self.files[edit.path]:
            return False, 0
        loaded = self._load(edit, text, twice)
        meant, had = read(text).declared, self.declared[edit.path]
        refused = any(one.severity == "error" for one in loaded.diagnostics)
        assert refused or meant is not None, f"{edit}: it cannot be used, and nothing was said"
        contents = _contents(loaded.desired)
        lost = {name for name in self.contents if name not in contents}
        planned = self._disruptions(loaded.desired, contents)
        if refused or meant is None:
            assert not lost, f"{edit}: refused, and {sorted(lost)} not in force any more"
            assert not loaded.desired.budget_broken and not loaded.desired.incomplete, f"{edit}: all was known before"
            kept = loaded.refused_files
            assert edit.path in kept or kept, f"{edit}: refused, but no file is"
            if edit.path in kept and meant is None:
                assert not planned, f"{edit}: refused, and yet {[one.message for one in planned]}"
        gone = set(had) - set(had if meant is None or refused else meant)
        assert lost <= gone, f"{edit}: {sorted(lost - gone)} are still declared, or may be"
        changed = {name for name, value in had.items() if meant is not None and meant.get(name) != value}
        for action in planned:
            assert _meant(action, gone, changed, loaded.desired), f"{edit}: {kind_of(action)} {action.message}"
        return refused, sum(isinstance(action, act.DeleteObject) for action in planned)

    def _load(self, edit: Edit, text: bytes, twice: bool) -> Loaded:
        files, blobs = {**self.files, edit.path: text}, {**self.blobs, edit.path: content_id(text)}
        record = RevisionRecord("", blobs, {})
        self.steps.contents = {blob: self.files[path] for path, blob in self.blobs.items()}
        if not twice:
            return self.steps.look(files, record, self.memory)
        # the next pass knows only what the first one left in belay-sync
        self.steps.data = {}
        self.steps.push(self.files)
        self.steps.push(files)
        return self.steps.push(files)

    def _disruptions(self, desired: Desired, contents: dict[str, Any]) -> tuple[act.AnyAction, ...]:
        """What one pass would disrupt; the planner is pure, so what it is asked again it need not answer again."""
        flags = (desired.held, desired.incomplete, desired.budget_broken)
        names = sorted({*contents, *self.contents})
        key = (*flags, *((name, repr(contents.get(name))) for name in names if self._differs(contents, name)))
        if key not in self._plans:
            if len(self._plans) > 5000:
                self._plans.clear()
            self._plans[key] = tuple(_disruptions(plan(desired, self.observed, self.now)))
        return self._plans[key]

    def _differs(self, contents: dict[str, Any], name: str) -> bool:
        new, old = contents.get(name), self.contents.get(name)
        return bool(new is not old and new != old)


@cache
def world() -> EditedWorld:
    """One for each process."""
    return EditedWorld()


def _disruptions(result: Any) -> Iterator[act.AnyAction]:
    several = (*result.actions, *(deferred.action for deferred in result.deferred))
    return (action for action in several if isinstance(action, DISRUPTIVE))


def _contents(desired: Desired) -> dict[str, Any]:
    """All that is in force of the repository's own, by ``Kind/namespace/name``."""
    groups = (
        desired.pools, desired.layouts, desired.fault_policies, desired.isolations, desired.budgets,
        desired.scheduling, desired.links, desired.products.values(), desired.fault_tables.values(),
        desired.templates.values(),
    )  # fmt: skip
    own = {
        str(ObjectKey("", item.document.KIND, "", item.document.name)): item.document
        for group in groups
        for item in group
        if not item.origin.file.startswith("shipped:")
    }
    return own | {str(manifest.key): manifest.digest for manifest in desired.manifests}


def _meant(action: act.AnyAction, gone: set[str], changed: set[str], desired: Desired) -> bool:
    """Whether the text itself asks for an action: what it declares no more may be deleted, what it declares otherwise
    may move its own pods, and a policy may judge chips that have a fault otherwise.
    """
    if isinstance(action, act.DeleteObject):
        return str(ObjectKey("", action.object_kind, action.namespace, action.name)) in gone
    kinds = {name.partition("/")[0] for name in changed}
    if isinstance(action, act.EvictPod | act.ScaleJob):
        owners = {name.rpartition("/")[2] for name in changed}
        job = action.owner.name if isinstance(action, act.EvictPod) and action.owner else getattr(action, "name", "")
        return job in owners or any(job.startswith(name) for name in owners)
    if isinstance(action, act.PartitionChip):
        return bool(kinds & {"VNPULayout", "NodePool", "VNPUTemplates", "Product"})
    node, chips = getattr(action, "node", ""), getattr(action, "chips", ())
    if "Isolation" in kinds:
        named = {name for item in desired.isolations for name in item.document.spec.nodes}
        named |= {row.node for item in desired.isolations for row in item.document.spec.chips}
        return node in named
    faulty = {(name, f"Ascend910-{chip}") for name, chip in FAULTS}
    return bool(kinds & {"FaultPolicy", "FaultTable"}) and all((node, chip) in faulty for chip in chips) and bool(chips)
