"""Jobs whose running pods were made before Git changed their template.

Nothing restarts the pods of a running training job for a changed template: it takes effect with the next restart, which
may be a fault at night. Until then the status says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from belay.engine.documents import Manifest
from belay.engine.gangs.forming import gang_key
from belay.engine.gangs.templates import pod_templates
from belay.engine.model.cluster import Pod
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic, ObjectKey, Origin
from belay.engine.model.jobs import Gang
from belay.engine.model.times import rfc3339
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.sync.drift import first_difference

#: Kinds whose running pods stay as they were made; the controllers of other kinds roll them, or refuse the change.
_KEEPING: Final = frozenset({("mindxdl.gitee.com", "AscendJob"), ("batch.volcano.sh", "Job")})


def remember(facts: Facts, draft: Draft, gangs: PassGangs, manifest: Manifest, live: Mapping[str, Any]) -> None:
    """Remember that this pass changes the pod templates of a job, where it does."""
    key = manifest.key
    if (key.api_version.partition("/")[0], key.kind) not in _KEEPING:
        return
    gang = gangs.get(gang_key(key.api_version, key.kind, key.namespace, key.name))
    declared, standing = pod_templates(manifest.body.get("spec")), pod_templates(live.get("spec"))
    same = len(declared) == len(standing) and not any(
        first_difference({"template": new}, {"template": old}) for new, old in zip(declared, standing, strict=True)
    )
    if gang is not None and not same:
        draft.memory.retemplated[gang.key] = facts.now_ms


def report(facts: Facts, draft: Draft, gangs: PassGangs) -> None:
    """Report the jobs that run pods of an older template; one that runs none any more is forgotten."""
    if not draft.memory.retemplated:
        return
    files = {one.key: one for one in facts.desired.manifests}
    for key, changed in sorted(draft.memory.retemplated.items()):
        gang = gangs.get(key)
        running = list(_running(facts, gang)) if gang is not None else []
        older = [pod for pod in running if pod.created * 1000 < changed]
        if gang is None or not older:
            del draft.memory.retemplated[key]
            continue

        origin = files[_object(gang)].origin if _object(gang) in files else Origin("", 0, 0)
        text = (
            f"{len(older)} of {len(running)} running pods have the older template: it was changed at "
            f"{rfc3339(changed / 1000)} and takes effect when the job restarts; belay plan says before a "
            "push whether the new one would fit"
        )
        where = f"{gang.kind}/{gang.namespace}/{gang.name}"
        place = (origin.file, origin.line, origin.column)
        draft.diagnostics.append(Diagnostic("info", where, *place, "", text, PassCode.OLDER_TEMPLATE))


def _object(gang: Gang) -> ObjectKey:
    return ObjectKey(gang.api_version, gang.kind, gang.namespace, gang.name)


def _running(facts: Facts, gang: Gang) -> Iterator[Pod]:
    """The gang's pods that run, and are not on their way out."""
    for key in gang.pods:
        pod = facts.observed.pods.get(key)
        if pod is not None and pod.node and pod.deleting is None and not pod.finished:
            yield pod
