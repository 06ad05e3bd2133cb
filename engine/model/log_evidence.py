"""What agents find in the logs of a failed job: events that rules match, per pod. Logs themselves stay on their nodes.

Times are Unix ms by the clock of the pod's node. A rank is the number of a process in the job's largest communicator.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

#: Most rules that count, alternatives of one, and texts that an alternative demands together.
MAX_RULES = 512
MAX_ALTERNATIVES = 16
MAX_TEXTS = 8
#: Most events of a pod, ranks and places that an event names, characters of its example.
MAX_EVENTS = 48
MAX_NAMED = 16
MAX_EXAMPLE = 240
#: Most pods in the evidence of one node, and most ranks of one pod.
MAX_PODS = 32
MAX_RANKS = 64


class LogSource(StrEnum):
    """Where lines come from: the pod's own output, CANN's plog, the device, an inference server, the host; and, in
    collected folders only, MindCluster's components, the BMC, switches, and what `npu-smi` and `hccn_tool` printed."""

    TRAINING = "training"
    PLOG = "plog"
    DEVICE = "device"
    INFERENCE = "inference"
    HOST = "host"
    COMPONENT = "component"
    BMC = "bmc"
    SWITCH = "switch"
    CHECK = "check"


class EventRole(StrEnum):
    """What an event says about the root: it may be the cause; it says that this rank waited for another; it only
    follows from something else."""

    CAUSE = "cause"
    COLLECTIVE = "collective"
    SYMPTOM = "symptom"


class LogRule(msgspec.Struct, frozen=True):
    """A line matches when it holds every text of one of the alternatives; upper and lower case are alike."""

    code: str
    role: EventRole
    match: tuple[tuple[str, ...], ...]
    sources: tuple[LogSource, ...] = ()


class LogEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """Lines of one rank that match one rule: the time of the first (0: unknown), their number, the first as example.

    ``rank`` is -1 where the line does not say which process of the pod wrote it. ``remotes`` are ranks that the lines
    name as the ones waited for; ``places`` are ``host address/device`` that HCCL names as abnormal.
    """

    code: str
    role: EventRole
    first_ms: int = 0
    count: int = 1
    rank: int = -1
    remotes: tuple[int, ...] = ()
    places: tuple[str, ...] = ()
    source: LogSource = LogSource.TRAINING
    example: str = ""


class PodEvidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the logs of one pod say. ``ranks`` are those of its processes where the logs name them, ``world`` the number
    of ranks; ``pod_rank`` is the pod's own number, -1 without one. ``cut``: some logs were too large to read whole.
    ``bystander``: no process of the job ran there (a BMC, a switch), so that its silence says nothing.
    """

    namespace: str
    pod: str
    uid: str
    node: str = ""
    api_version: str = ""
    kind: str = ""
    owner: str = ""
    group: str = ""
    template_hash: str = ""
    host_ip: str = ""
    pod_rank: int = -1
    chips: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    world: int = 0
    collected_ms: int = 0
    why: str = ""
    files: int = 0
    cut: bool = False
    events: tuple[LogEvent, ...] = ()
    bystander: bool = False
