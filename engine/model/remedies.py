"""The change that lets a waiting job start, as values: what a sentence says to people, a program can carry out."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec


class Step(StrEnum):
    """What is to be done; ``MEANING`` says which fields of ``Remedy`` each step uses."""

    ASK_CHIPS = "ask-chips"
    ASK_RESOURCE = "ask-resource"
    SET_SELECTOR = "set-selector"
    SET_POLICY = "set-policy"
    SET_LABEL = "set-label"
    ONE_POD = "one-pod"
    LABEL_NODE = "label-node"
    TOLERATE = "tolerate"
    UNCORDON = "uncordon"
    OFFER = "offer"
    FREE_CHIPS = "free-chips"
    FREE_ROOM = "free-room"
    ASK_LESS = "ask-less"
    RELAX = "relax"
    ADD_NODE = "add-node"
    WAIT = "wait"
    MEND = "mend"
    END_ISOLATION = "end-isolation"
    REPORT = "report"
    RESUME_POOL = "resume-pool"
    CREATE_PODS = "create-pods"
    CREATE_GROUP = "create-group"
    STATE_LESS = "state-less"
    CREATE_QUEUE = "create-queue"
    OPEN_QUEUE = "open-queue"
    SET_QUEUE = "set-queue"
    RAISE_QUEUE = "raise-queue"
    LOWER_GUARANTEES = "lower-guarantees"
    BIND_CLAIM = "bind-claim"
    ADD_VOLUME = "add-volume"
    FREE_STORAGE = "free-storage"
    NEW_CLAIM = "new-claim"
    SERVE_CLAIM = "serve-claim"
    MOVE_JOB = "move-job"
    SET_PARAMETER = "set-parameter"


#: What each step asks for, with the fields that hold its values; ``node`` is the node where it is about one.
MEANING: Final[Mapping[Step, str]] = {
    Step.ASK_CHIPS: "ask for so many chips a pod (``count``)",
    Step.ASK_RESOURCE: "ask for one NPU resource alone (``values``)",
    Step.SET_SELECTOR: "write these entries into the pods' nodeSelector (``values``), and take those of ``remove`` "
    "away",
    Step.SET_POLICY: "write these annotations into the job (``values``), take those of ``remove`` away, and ask for so "
    "many chips a pod where ``count`` says so",
    Step.SET_LABEL: "write these labels into the job (``values``), and take those of ``remove`` away",
    Step.ONE_POD: "run the job as one pod",
    Step.LABEL_NODE: "give the node these labels (``values``; an empty value is yours to fill in), and take those of "
    "``remove`` away",
    Step.TOLERATE: "tolerate this taint of the node (``values``: key and value)",
    Step.UNCORDON: "uncordon the node",
    Step.OFFER: "let the node offer so many (``count``) of a resource that it lacks (``values``)",
    Step.FREE_CHIPS: "end other work on the node until so many chips are free (``count``)",
    Step.FREE_ROOM: "end other work on the node that takes this resource (``values``)",
    Step.ASK_LESS: "ask for no more of a resource than a node could give (``values``)",
    Step.RELAX: "leave these rules out of the pods (``values``, such as podAntiAffinity)",
    Step.ADD_NODE: "add a node that offers the resource (``values``) and has so many chips (``count``)",
    Step.WAIT: "nothing: it ends with time",
    Step.MEND: "bring the node or its broken chips back: ready, no faults, a new report",
    Step.END_ISOLATION: "end the Isolation of the node",
    Step.REPORT: "let the node report all of its chips again",
    Step.RESUME_POOL: "set spec.suspend of the NodePool (``name``) to false",
    Step.CREATE_PODS: "create so many more pods of the job (``count``)",
    Step.CREATE_GROUP: "create the PodGroup (``name``)",
    Step.STATE_LESS: "state at most so many chips in spec.minResources of the PodGroup (``count``)",
    Step.CREATE_QUEUE: "create the queue (``name``)",
    Step.OPEN_QUEUE: "open the queue (``name``)",
    Step.SET_QUEUE: "write this queue into the job (``name``)",
    Step.RAISE_QUEUE: "raise the capability of the queue (``name``) for a resource (``values``) by ``count``",
    Step.LOWER_GUARANTEES: "lower guarantees of other queues than this one (``name``), of a resource, by ``count``",
    Step.BIND_CLAIM: "create or bind the claim (``name``)",
    Step.ADD_VOLUME: "add a volume that suits the claim (``name``) and that the node reaches",
    Step.FREE_STORAGE: "free storage of the claim's class (``name``: the claim) where the node reaches it",
    Step.NEW_CLAIM: "put a new claim in the place of this one (``name``), which is tied to other nodes or another pod",
    Step.SERVE_CLAIM: "let the claim's allocator give it devices for this pod (``name``)",
    Step.MOVE_JOB: "create the job in another namespace",
    Step.SET_PARAMETER: "write this parameter into the scheduler's init-params (``values``; an empty value is yours to "
    "fill in)",
}


class Remedy(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step, on a node or on the job itself (``node`` is empty then); ``name`` is any other object's."""

    step: Step
    node: str = ""
    name: str = ""
    count: int = 0
    values: dict[str, str] = {}
    remove: tuple[str, ...] = ()
