"""What a caller may ask for: each method has a scope, and a caller speaks for its own job, namespace or node only.

ClusterD answers everybody. Here a pod of one job cannot report faults of another: what may lead to evictions, resets or
isolated nodes needs a caller that proves who it is (`callers.py`).
"""

from __future__ import annotations

import enum
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import grpc
import msgspec

from belay.engine.errors import bounded
from belay.engine.log import get
from belay.engine.model.cluster import Pod
from belay.engine.serve.grpc.callers import AGENT_ACCOUNT, Caller, Callers, Proof, remember
from belay.engine.serve.grpc.job_view import JobView
from belay.engine.serve.grpc.observed_cluster import ObservedCluster
from belay.engine.serve.grpc.streams import Context

_log = get("grpc.access")
#: Seconds for which a call that is to be relayed waits for the first list of the cluster.
SYNC_SECONDS: Final = 5.0
_MAX_NAME: Final = 120
_QUIET_SECONDS: Final = 60.0
_MAX_REMEMBERED: Final = 1_024


class MethodScope(enum.StrEnum):
    """What a method needs.

    ``open``: nothing. ``read``: a caller that is known, or mode ``address``. ``job``: a pod of the job, or a caller of
    its namespace that belongs to no job. ``operate``: the latter only, never by address of a node. ``faults``: an agent
    for its own node, or an account that may send public faults.
    """

    OPEN = "open"
    READ = "read"
    JOB = "job"
    OPERATE = "operate"
    FAULTS = "faults"


class MethodRule(NamedTuple):
    """A method's scope, and the field of its request that names the job (a uid, or ``namespace/name``)."""

    scope: MethodScope
    field: str = ""


_JOB: Final = MethodRule(MethodScope.JOB, "jobId")
_OPERATE: Final = MethodRule(MethodScope.OPERATE, "jobID")
#: Every method that is served, by its path.
METHODS: Final[Mapping[str, MethodRule]] = {
    "/Recover/HealthCheck": MethodRule(MethodScope.OPEN),
    **{
        f"/Recover/{name}": _JOB
        for name in (
            "Init", "Register", "SubscribeProcessManageSignal", "ReportStopComplete", "ReportRecoverStrategy",
            "ReportRecoverStatus", "ReportProcessFault", "SubscribeNotifySwitch", "SubscribeNotifyExecStressTest",
            "ReplySwitchNicResult", "ReplyStressTestResult",
        )
    },
    **{
        f"/Recover/{name}": _OPERATE
        for name in ("SwitchNicTrack", "StressTest", "SubscribeSwitchNicSignal", "SubscribeStressTestResponse")
    },
    "/belay.training.v1.Training/ReportRecovery": MethodRule(MethodScope.JOB, "job_id"),
    "/TrainingDataTrace/ModifyTrainingDataTraceSwitch": MethodRule(MethodScope.JOB, "jobNsName"),
    "/TrainingDataTrace/GetTrainingDataTraceSwitch": MethodRule(MethodScope.READ),
    "/TrainingDataTrace/SubscribeDataTraceSwitch": MethodRule(MethodScope.READ),
    "/config.Config/Register": MethodRule(MethodScope.READ),
    "/config.Config/SubscribeRankTable": MethodRule(MethodScope.READ),
    "/fault.Fault/Register": MethodRule(MethodScope.READ),
    "/fault.Fault/SubscribeFaultMsgSignal": MethodRule(MethodScope.READ),
    "/fault.Fault/GetFaultMsgSignal": MethodRule(MethodScope.READ),
    "/job.Job/Register": MethodRule(MethodScope.READ),
    "/job.Job/SubscribeJobSummarySignal": MethodRule(MethodScope.READ),
    "/job.Job/SubscribeJobSummarySignalList": MethodRule(MethodScope.READ),
    "/PubFault/SendPublicFault": MethodRule(MethodScope.FAULTS),
}  # fmt: skip


class Grants(msgspec.Struct, frozen=True):
    """Accounts, as (namespace, name), that may do more: ``operators`` speak for every job, ``fault_senders`` send
    public faults of every node.
    """

    operators: frozenset[tuple[str, str]] = frozenset()
    fault_senders: frozenset[tuple[str, str]] = frozenset()


class ObservedPods:
    """The pods of the observed cluster by address, and the jobs that they belong to; derived once per snapshot."""

    def __init__(self, cluster: ObservedCluster) -> None:
        self._cluster = cluster
        self._version = -1
        self._addresses: dict[str, list[Pod]] = {}
        self._jobs: dict[str, str] = {}

    def pod(self, key: str) -> Pod | None:
        """Return the pod ``namespace/name``; None without it."""
        return self._cluster.observed.pods.get(key)

    def at_address(self, address: str) -> Iterable[Pod]:
        """The live pods with this address; addresses of finished pods may be others' by now."""
        self._derive()
        return self._addresses.get(address, ())

    def account_of(self, pod: Pod) -> str:
        """The name of the pod's ServiceAccount."""
        return self._cluster.container_settings(pod).account

    def job_of(self, key: str) -> str:
        """The id of the job that the pod belongs to; empty for a pod without chips that belongs to none."""
        self._derive()
        return self._jobs.get(key, "")

    def _derive(self) -> None:
        if self._version == self._cluster.version:
            return
        self._version = self._cluster.version
        self._addresses, self._jobs = {}, {}
        for pod in self._cluster.observed.pods.values():
            if pod.pod_ip and not pod.finished:
                self._addresses.setdefault(pod.pod_ip, []).append(pod)
            if pod.count:
                self._jobs[pod.key] = pod.uid  # a job of its own, unless it is part of one below
        for view in self._cluster.jobs.values():
            # a Deployment without chips and PodGroup is a service beside the jobs, such as a platform's
            if view.chips_per_pod or view.group or view.kind == "AscendJob":
                for pod in (*view.pods, *view.backups):
                    self._jobs[pod.key] = view.id


class Access:
    """Admits calls. ``served`` says whether a job has a session although the cluster no longer shows it."""

    def __init__(
        self,
        callers: Callers,
        cluster: ObservedCluster,
        pods: ObservedPods,
        *,
        grants: Grants | None = None,
        served: Callable[[str], bool] = lambda job: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.callers = callers
        self._cluster = cluster
        self._pods = pods
        self._grants = grants or Grants()
        self._served = served
        self._clock = clock
        self._said: OrderedDict[tuple[str, str], float] = OrderedDict()

    async def admit(self, method: str, request: Any, context: Context) -> None:
        """Return when the caller may make this call; abort it with the reason otherwise."""
        rule = METHODS.get(method)
        if rule is not None and rule.scope is MethodScope.OPEN:
            return
        found = await self.callers.identify(context)
        remember(found)
        if self.callers.mode == "any":
            return
        why = "it has no rule, so every call is refused" if rule is None else self._refusal(rule, request, found)
        if why:
            self._say(method, found, why)
            known = found.proof is not Proof.NONE
            status = grpc.StatusCode.PERMISSION_DENIED if known else grpc.StatusCode.UNAUTHENTICATED
            await context.abort(status, f"{method}: {why}")

    async def admit_to_relay(self, method: str, request: Any, context: Context) -> None:
        """Return when the caller may make this call by this server's own setting; the serving server judges again, by
        its own. Aborts the call otherwise.
        """
        if self.callers.mode == "any":
            return
        rule = METHODS.get(method)
        if rule is not None and rule.scope is MethodScope.OPEN:
            return

        # a pod can only be known once the pods are listed
        if not await self._cluster.wait_synced(SYNC_SECONDS):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the cluster is not listed yet; try again")
        if not self._cluster.whole:
            self._cluster.refresh()
        await self.admit(method, request, context)

    def _refusal(self, rule: MethodRule, request: Any, found: Caller) -> str:
        """Why the caller may not; empty when it may."""
        if rule.scope is MethodScope.READ and self.callers.mode == "address":
            return ""
        if found.proof is Proof.NONE:
            return (
                f"{found.title} does not say who it is; mount a token with serviceAccountToken.audience belay and send "
                "it as 'authorization: Bearer <token>', or set BELAY_GRPC_CALLERS=address on belay server to go by "
                "the addresses of pods"
            )
        match rule.scope:
            case MethodScope.READ | MethodScope.OPEN:
                return ""
            case MethodScope.FAULTS:
                return self._of_faults(request, found)
            case MethodScope.JOB | MethodScope.OPERATE:
                return self._of_job(rule, str(getattr(request, rule.field)), found)

    def _of_job(self, rule: MethodRule, name: str, found: Caller) -> str:
        account = (found.namespace, found.account)
        if found.proof is not Proof.ADDRESS and account in self._grants.operators:
            return ""
        shown = bounded(name, _MAX_NAME)
        view = self._job(name)
        for key in found.pods:
            pod = self._pods.pod(key)
            if not found.shared and (pod is None or pod.uid != found.pod_uid):
                return f"pod {key} is not observed yet; try again"
        own = {self._pods.job_of(key) for key in found.pods} - {""}
        job = view.id if view is not None else name
        if rule.scope is MethodScope.JOB and job in own:
            return ""
        if own or found.shared:
            belongs = f"belongs to job {', '.join(sorted(own))}" if own else "belongs to no job"
            what = (
                "operations are for operators"
                if rule.scope is MethodScope.OPERATE
                else "it speaks for its own job only"
            )
            return f"{found.title} {belongs}, not to {shown}: {what}"
        if view is None:
            # the handler answers that there is no such job; a session that outlives its pods is not for others
            return f"job {shown} is not observed; try again" if self._served(name) else ""
        if found.namespace != view.namespace:
            return (
                f"{found.title} is not of namespace {view.namespace}, where job {shown} is; accounts in "
                "BELAY_GRPC_OPERATORS of belay server may speak for every job"
            )
        return ""

    def _of_faults(self, request: Any, found: Caller) -> str:
        account = (found.namespace, found.account)
        if account in self._grants.fault_senders and not found.shared:
            return ""
        agent = found.proof is not Proof.ADDRESS and (account == AGENT_ACCOUNT or (found.node and not found.account))
        if not agent:
            return (
                f"{found.title} may not send public faults: agents may, of their own node; name other senders' "
                "ServiceAccounts in BELAY_GRPC_FAULT_SENDERS of belay server"
            )
        if not found.node:
            return f"the node of {found.title} is not known: its token must be one that kubelet projects into its pod"
        for fault in request.faults:
            for hit in fault.influence:
                if hit.nodeName != found.node or hit.nodeSN:
                    where = bounded(hit.nodeName or hit.nodeSN, _MAX_NAME)
                    return f"{found.title} is on node {found.node} and may not report faults of {where!r}"
        return ""

    def _job(self, name: str) -> JobView | None:
        """The job with this uid, or of this ``namespace/name``."""
        found = self._cluster.jobs.get(name)
        if found is None and "/" in name:
            both = [view for view in self._cluster.jobs.values() if f"{view.namespace}/{view.name}" == name]
            found = max(both, key=lambda view: view.running, default=None)
        return found

    def _say(self, method: str, found: Caller, why: str) -> None:
        """Log a refusal, the same one at most once a minute."""
        key, now = (method, found.title), self._clock()
        if now - self._said.get(key, -_QUIET_SECONDS) < _QUIET_SECONDS:
            return
        self._said[key] = now
        self._said.move_to_end(key)
        while len(self._said) > _MAX_REMEMBERED:
            self._said.popitem(last=False)
        _log.warning("call refused", method=method, caller=found.title, address=found.address, reason=why)


__all__ = ["METHODS", "Access", "Grants", "ObservedPods", "MethodRule", "MethodScope"]
