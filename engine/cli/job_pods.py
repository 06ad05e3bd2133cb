"""Jobs and their pods, as the engine published them: of any kind of workload, and after each recovery the new pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from belay.engine.errors import InputError
from belay.engine.model.labels import ABOUT_LABEL


class PublishedPods(NamedTuple):
    """A job: its phase, and the pods that have a place, by name, with ``node``, ``chips`` and ``phase`` of each."""

    namespace: str
    kind: str
    name: str
    phase: str
    pods: Mapping[str, Mapping[str, Any]]

    @property
    def short(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def key(self) -> str:
        """``namespace/Kind/name``."""
        return f"{self.namespace}/{self.kind}/{self.name}"


SELECTOR = f"{ABOUT_LABEL}=job"


def published_jobs(config_maps: Iterable[Mapping[str, Any]]) -> list[PublishedPods]:
    """Every job that is published, in order of name."""
    from belay.engine.status.status_reader import read_status

    found = []
    for job in read_status(config_maps).jobs:
        namespace, _, rest = job.name.partition("/")
        kind, _, name = rest.partition("/")
        pods = {pod: place for pod, place in job.placement.items() if isinstance(place, Mapping)}
        if name:
            found.append(PublishedPods(namespace, kind, name, job.phase, dict(sorted(pods.items()))))
    return found


def meant_job(jobs: Iterable[PublishedPods], name: str, namespace: str | None = None) -> PublishedPods:
    """The job that a person means by NAME, NAMESPACE/NAME or NAMESPACE/KIND/NAME.

    Raises:
        InputError: there is none, or there are several.
    """
    from belay.engine.cli.selection import named

    known = {job.key: job for job in jobs if namespace is None or job.namespace == namespace}
    rows = [{"namespace": job.namespace, "kind": job.kind, "name": job.name} for job in known.values()]
    if namespace is not None and not rows:
        raise InputError(f"there is no job in the namespace {namespace}", where=name, hint="belay get jobs lists all.")
    fit = named("jobs", rows, name)
    if len(fit) > 1:
        several = ", ".join("/".join(row.values()) for row in fit[:5])
        raise InputError(f"several jobs have this name: {several}", where=name, hint="Write it as one of these.")
    return known["/".join(fit[0].values())]


def job_of_pod(jobs: Iterable[PublishedPods], namespace: str, pod: str) -> str:
    """The key of the job that a pod belongs, or belonged, to; empty for none.

    A pod that is gone is known by its name alone, which begins with the job's: the longest such name is meant.
    """
    fitting = []
    for job in jobs:
        if job.namespace != namespace:
            continue
        if pod in job.pods:
            return job.key
        if pod == job.name or pod.startswith(f"{job.name}-"):
            fitting.append(job)
    return max(fitting, key=lambda job: len(job.name)).key if fitting else ""
