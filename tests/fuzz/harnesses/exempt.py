"""Parsers without a harness, and why."""

from __future__ import annotations

from typing import Final

_PLAN: Final = (
    "annotations and ConfigMaps in a pass: every pass over a mutated cluster runs in cluster-file and recording"
)
_OWN: Final = "reads what this process or its own parent wrote a moment ago, through a pipe of its own"
_SHIPPED: Final = "reads files that are installed with Belay, and tests read every one of them"
REASONS: Final = {
    "engine/cli/key_": "keys and rotations of the operator who runs the command, from files of mode 0600 or Secrets",
    "engine/cli/console_answers.py": _OWN,
    "engine/cli/mcp_answers.py": "what a belay that this process started printed, bounded; other text passes as text",
    "engine/serve/console/answers.py": _OWN,
    "engine/cli/server_client.py": "one bounded decode of an answer of the server that the user names",
    "engine/cli/known_names.py": "the user's own cache of names for the shell; a damaged one counts as none",
    "engine/serve/records/store.py": "the history's own row about its writer; anything else counts as no writer",
    "engine/serve/console/offline.py": _OWN,
    "engine/serve/login/issuer.py": "answers of the issuer that the operator names, bounded; every error is named",
    "engine/serve/login/sessions.py": "what this server sealed; anything else does not open",
    "engine/serve/console/questions.py": "one decode of the body of a what-if, which console-what-if repeats",
    "engine/versions.py": "what the build wrote beside it; anything else counts as no build",
    "agents/dra/claims.py": "the driver's own record of prepared claims; a damaged one refuses every claim by name",
    "agents/node/commit_trust.py": "the agent's own record, mode 0600; a damaged one counts as none, with a warning",
    "agents/node/link_trust.py": "the agent's own record, mode 0600; a damaged one counts as none, with a warning",
    "engine/sandbox/": "the sandbox of a laptop: its API server and simulated nodes serve processes of the same user",
    "engine/plan/": _PLAN,
    "engine/gangs/retries.py": _PLAN,
    "engine/documents/scheduling.py": "init-params, which documents and cluster-file reach by their values",
    "engine/model/recovery/summary.py": "the history in belay-job-*: the harness status reads it",
    "engine/status/statistics.py": "reads Belay's own current-job-statistic back; an unreadable text is none",
    "engine/act/orders.py": "orders that parse_orders accepted are decoded again; see orders",
    "engine/controller/pass_reporter.py": "conditions of Belay's own belay-sync: the harness sync reads them",
    "engine/controller/shard.py": "objects that the harness redis reads are decoded again",
    "engine/kube/plain_access.py": "the operator's own kubeconfig; what is odd in it is left to the official client",
    "engine/kube/one_shot.py": "bodies from the API server: one bounded decode, every error named",
    "engine/kube/reader.py": "lines of a watch from the API server: orjson, with every error named; see watch-events",
    "engine/kube/transport.py": "bodies from the API server: orjson, with every error named; tests/test_kube.py",
    "engine/load/files.py": "walks folders; the harnesses documents and policies feed what it reads",
    "engine/serve/grpc/grading.py": "policies in force, looked at for one key; an unreadable text sets none",
    "engine/serve/grpc/listening.py": "the servers' own rows in belay-server; an unreadable one is dropped",
    "engine/serve/grpc/fault_view.py": "memory.json of the engine's own history ConfigMaps: see the harness history",
    "engine/serve/grpc/jobs.py": "rank tables that rankfile accepted, in their parts; see the harness rankfile",
    "engine/serve/grpc/profiling.py": "data-trace ConfigMaps: one msgspec decode to a map of text, every error caught",
    "engine/serve/grpc/recovery/operations.py": "decodes the request that the same file encoded when it was accepted",
    "agents/daemon/server_topology.py": "the driver's own file, which is only passed on: whether it is JSON at all",
    "agents/datadist/caches.py": "copies memory of this process for a local cache; no outside text",
    "agents/datadist/peer.py": "TCP_INFO of the kernel; the frames of peers are read by datadist-frames",
    "agents/drivers/dcmi/child.py": _OWN,
    "agents/drivers/simulated.py": "the simulated driver's description, which simulated-faults reads",
    "agents/drivers/surroundings.py": "the simulated surroundings of the sandbox's nodes",
    "agents/kubelet/kubeletpods.py": "the local kubelet's list of pods over TLS; every error becomes an ApiError",
    "engine/observe/workload_watches.py": _SHIPPED,
    "agents/kubelet/templates.py": _SHIPPED,
    "agents/node/shipped.py": _SHIPPED,
    "agents/node/diagnosis/rules.py": _SHIPPED,
    "agents/runtime/tables.py": _SHIPPED,
    "agents/common/client.py": "answers of the API server; each error becomes an ApiError (tests/test_agent_client.py)",
    "agents/node/hardware/roceping.py": "the range file beside the ping list, which ping-list reads",
    "agents/node/trust.py": "the agent's own pinned state, mode 0600; a damaged one falls back to the mounted keys",
    "agents/rdma/report.py": "the kernel's own answers about interfaces",
    "agents/runtime/install": "root's own container engine files: runtime-engines and toml read the same texts",
    "agents/training/train/agent/": _OWN,
    "agents/training/compat/taskd/warm_": _OWN,
    "agents/training/checkpoint/objects.py": "the mark of an upload; checkpoint-shards reads the same form",
    "agents/training/checkpoint/slots.py": "the header of memory that this process shares; another magic is free",
    "agents/training/checkpoint/writer.py": "credentials of a peer from the kernel (SO_PEERCRED)",
    "agents/training/compat/manager/core.py": "reports of agents on the bus: bus-body reads the texts inside them",
    "agents/training/train/native/lost_waits.py": "words of this process's own memory; any bytes are numbers",
    "agents/training/train/page.py": "a page of shared memory with five numbers; any bytes are numbers",
    "agents/training/train/worker/": "state that ranks of one job exchange over their own process group",
}
"""Module or folder, by the beginning of its path."""


def exempt(module: str) -> bool:
    """Whether a module needs no harness."""
    return module.startswith(tuple(REASONS))


__all__ = ["REASONS", "exempt"]
