"""The change that lets a waiting job start, as values: what a sentence says to people, a program can carry out."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Step(StrEnum):
    """What is to be done; the fields of ``Remedy`` that each step uses stand behind it."""

    ASK_CHIPS = "ask-chips"  # count: chips a pod
    ASK_RESOURCE = "ask-resource"  # values: the one NPU resource to ask for
    SET_SELECTOR = "set-selector"  # values: entries of the pod's nodeSelector
    SET_POLICY = "set-policy"  # values: annotations of the job
    SET_LABEL = "set-label"  # values: labels of the job
    ONE_POD = "one-pod"
    LABEL_NODE = "label-node"  # node, values; an empty value of a key in ``remove`` takes the label away
    TOLERATE = "tolerate"  # node, values: key and value of its taint
    UNCORDON = "uncordon"  # node
    OFFER = "offer"  # node, values: the resource that it lacks; count
    FREE_CHIPS = "free-chips"  # node, count
    FREE_ROOM = "free-room"  # node, values: the resource
    ASK_LESS = "ask-less"  # values: the resource and what a node could give


class Remedy(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step, on a node or on the job itself (``node`` is empty then)."""

    step: Step
    node: str = ""
    count: int = 0
    values: dict[str, str] = {}
    remove: tuple[str, ...] = ()
