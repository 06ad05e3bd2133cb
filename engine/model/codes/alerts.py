"""Names of the alerts that Belay ships (deploy/monitoring/alerts.yaml); docs/runbooks.md says more of each."""

from __future__ import annotations

from typing import Final

from belay.engine.model.codes.rows import ExplainedCode


def _row(meaning: str, way_out: str, causes: str = "") -> ExplainedCode:
    return ExplainedCode(meaning, causes, way_out, "runbooks.md")


ALERTS: Final = {
    "NPUUnhealthy": _row(
        "The driver reports a fault on a chip.",
        "belay explain chip NODE/CHIP says what is done; at SeparateNPU the chip waits for a person.",
    ),
    "NPUHealthUnknown": _row(
        "The driver has not said how a chip is for five minutes.",
        "See npu-smi info on the node; a reboot often cures a chip that lets calls hang.",
    ),
    "NPULost": _row(
        "A node lists fewer chips than within the last hour.",
        "See lspci and dmesg on the node; isolate it and reboot it. The missing chips get no work already.",
    ),
    "NPUTooHot": _row(
        "A chip is above 90 °C.",
        "Isolate the node until the cause is mended.",
        "A fan, the air of the rack, a neighbour.",
    ),
    "NPUHBMUncorrectableErrors": _row(
        "A chip had memory errors that could not be corrected within the last hour.",
        "Let Belay reset the chip; have it replaced when they return.",
    ),
    "NPUHBMCorrectableErrors": _row(
        "A chip had more than a thousand corrected memory errors within a day.",
        "Plan its replacement for the next maintenance.",
    ),
    "NPULinkDown": _row(
        "The network port of a chip is down; jobs over several nodes avoid it.",
        "Mend the link.",
        "A cable, an optical module, the port of the switch.",
    ),
    "NPULinkFlaps": _row(
        "The network port of a chip came up more than three times within an hour.",
        "Clean or replace cable and module.",
    ),
    "NPUNetworkUnhealthy": _row(
        "A chip does not reach its peers over the parameter plane.",
        "hccn_tool -i CHIP -net_health -g on the node, then the switch.",
    ),
    "NPURoceRetransmits": _row(
        "A chip sends many packets again, which slows collective operations down.",
        "Check PFC and ECN at the switch.",
        "Congestion, or a bad link.",
    ),
    "NPUHCCSErrors": _row(
        "Links between the chips of a node have CRC errors.",
        "Drain the node and have the board checked if they go on.",
    ),
    "NPUIdleButHeld": _row(
        "A pod has held chips for four hours without using them.",
        "Ask its owner: belay explain pod NAMESPACE/NAME names it.",
    ),
    "NPUExporterDown": _row(
        "The metrics of a node cannot be read; placement does not depend on them.",
        "Restart the exporter's or agent's pod.",
    ),
    "NPUMetricsStale": _row(
        "The readings of a node are older than two minutes.",
        "As for NPUHealthUnknown.",
        "Its driver does not answer.",
    ),
    "BelayControllerSilent": _row(
        "No controller of a shard has reported for a minute: nothing is planned, agents protect their nodes.",
        "kubectl -n belay-system get pods,lease and the controller's log name what to mend.",
        "The controller is down, or Redis or the API server is away.",
    ),
    "BelayPassesStopped": _row(
        "A shard has had no pass for two minutes; all that is shown of it is as old.",
        "The first line of belay status says why; passes begin again without help once that is mended.",
        "No worker, Redis away, a full queue, a Lease that a stranger holds.",
    ),
    "BelayObjectsRefused": _row(
        "The API server refuses objects that Git declares, or pods of a job: they are not in force.",
        "belay status names each at file:line with the server's answer and the next step.",
    ),
    "BelayRedisDown": _row(
        "Redis does not answer. Nothing is lost: its content is made again from Git and Kubernetes.",
        "kubectl -n belay-system logs deploy/belay-redis, then restart it.",
        "A full disk, or too little memory.",
    ),
    "BelayActionsHeldBack": _row(
        "A safety budget has kept actions back for half an hour.",
        "belay status names them; wait for the window, raise the limit in Git, or belay confirm a deletion.",
    ),
    "BelayChipsOutOfService": _row(
        "More than a tenth of a shard's chips take no work.",
        "belay get chips names them with their codes; mend what most of them share first.",
        "Often one switch or rack.",
    ),
    "BelayFindings": _row(
        "Documents have errors; their last good versions stay in force.",
        "belay status names file, line and column; correct them and push.",
    ),
    "BelayBudgetUsedUp": _row(
        "A limit of a SafetyBudget has had nothing left for an hour: what it counts waits.",
        "belay status says what waits; find out what spends it before you raise it.",
    ),
    "BelayRecoverySlow": _row(
        "One in ten recoveries of a cause takes longer than half an hour.",
        "belay explain job NAME shows where the time goes; keep spare nodes, save checkpoints more often.",
    ),
    "BelayGoodputLow": _row(
        "More than a tenth of a day's held chip-seconds brought no progress.",
        "belay report --since yesterday says by which causes; replace repeat offenders, save checkpoints more often.",
    ),
    "BelayPassesSlow": _row(
        "Passes take longer than five seconds at the 99th percentile.",
        "Give workers more CPU, or split the cluster into shards (NodePool.spec.shard).",
    ),
    "BelayHistoryNotWritten": _row(
        "A server could not use the history's database for half an hour; the engine works on.",
        "The server's log says why; make room on the volume or repair the database (history.md).",
    ),
    "BelayNotificationsFailing": _row(
        "A receiver of a NotificationPolicy has taken nothing for a quarter of an hour; messages are kept six hours.",
        "belay status says what it answers; belay notify test RECEIVER tries it again.",
    ),
}
