"""Every metric of the engine's processes: name, type, labels, meaning. ``docs/metrics.md`` is written from this table.

Collectors build their families from it, so a metric that is not here cannot be shown.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

#: Seconds: passes take milliseconds, recoveries minutes, waits hours.
PASS_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
RECOVERY_BUCKETS: Final = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600)
WAIT_BUCKETS: Final = (1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 21600, 86400)
TRAINING_BUCKETS: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800)


class Described(NamedTuple):
    """One metric. ``name`` is what Prometheus stores, without the suffixes of its type."""

    name: str
    type: Literal["gauge", "counter", "histogram"]
    labels: tuple[str, ...]
    text: str
    buckets: tuple[float, ...] = ()


METRICS: Final = (
    Described("belay_build_info", "gauge", ("version",), "Always 1; the version is its label."),
    Described("belay_redis_up", "gauge", (), "Whether Redis answers (1) or not (0)."),
    Described(
        "belay_controller_silent_seconds", "gauge", ("shard",), "Seconds since the shard's controller last reported."
    ),
    Described(
        "belay_console_failures", "counter", ("place",),
        "Errors of the console's server that nothing foresaw: a document, an answer, a request. The log has each.",
    ),
    Described(
        "belay_history_up", "gauge", (),
        "Whether the history's database can be used by this server (1) or not (0); while it cannot, nothing is lost "
        "that the status still says when it can be used again.",
    ),
    Described(
        "belay_notifications", "counter", ("receiver", "outcome"),
        "Messages that this server sent, by receiver (policy/receiver) and outcome: sent; failed: tried in vain and to "
        "be tried again; lost: notices given up.",
    ),
    Described(
        "belay_notification_receiver_failing", "gauge", ("receiver",),
        "Whether the receiver took nothing at the last try (1); belay status says why.",
    ),
    Described(
        "belay_notifications_waiting", "gauge", (),
        "Notices that must still be sent: held by quiet hours or by a receiver that takes nothing.",
    ),
    Described("belay_history_records", "counter", (), "Records that this server stored in the history."),
    Described(
        "belay_pass_age_seconds", "gauge", ("shard",),
        "Seconds since the shard's last completed pass, as belay-pass says: everything else shown is as old.",
    ),
    Described("belay_last_pass_time", "gauge", ("shard",), "When the last pass was, in Unix seconds."),
    Described("belay_last_pass_seconds", "gauge", ("shard",), "How long the last pass took, in seconds."),
    Described("belay_nodes", "gauge", ("shard", "state"), "Nodes by state."),
    Described("belay_chips", "gauge", ("shard", "state"), "Chips by state; unknown: no report names them."),
    Described("belay_pending", "gauge", ("shard", "reason"), "Gangs and pods that were not placed, by reason."),
    Described("belay_deferred", "gauge", ("shard", "budget"), "Actions that a budget keeps back, by budget."),
    Described(
        "belay_budget_spent", "gauge", ("shard", "budget", "scope", "actions"),
        "What was spent of a limit of a SafetyBudget within its window; scopes without a spend are left out.",
    ),
    Described(
        "belay_budget_left", "gauge", ("shard", "budget", "scope", "actions"),
        "What such a limit still allows there.",
    ),
    Described("belay_refused", "gauge", ("shard", "cause"), "Objects that the API server refuses, by cause."),
    Described("belay_diagnostics", "gauge", ("shard", "severity"), "Findings by severity."),
    Described(
        "belay_shadow", "gauge", ("shard", "change"),
        "Actions that shadow policies would change, by policy/new or avoided/action.",
    ),
    Described(
        "belay_lemons", "gauge", ("shard", "state"),
        "Chips that have failed of late, by whether placement avoids them.",
    ),
    Described("belay_passes", "counter", ("shard",), "Passes that ended."),
    Described("belay_pass_failures", "counter", ("shard",), "Passes that ended with an error."),
    Described("belay_pass_duration_seconds", "histogram", ("shard",), "How long passes took.", PASS_BUCKETS),
    Described(
        "belay_actions", "counter", ("kind", "result"), "Actions by kind and result (done, refused, failed, dropped)."
    ),
    Described(
        "belay_recovery_seconds", "histogram", ("cause", "stage"),
        "From the decision to recover a job to each stage, by the reason of the decision. Stages: scheduled (kubelet "
        "has accepted the last new pod), running (all pods run), resumed (training goes on at full size).",
        RECOVERY_BUCKETS,
    ),
    Described(
        "belay_lost_chip_seconds", "counter", ("cause",),
        "Chip-seconds without progress that recoveries cost, work done again included.",
    ),
    Described(
        "belay_held_chip_seconds", "counter", ("shard",),
        "Chip-seconds that pods held. Goodput is 1 - rate(belay_lost_chip_seconds_total) / this rate.",
    ),
    Described(
        "belay_queue_wait_seconds", "histogram", ("resource",),
        "From the creation of a pod to the decision that binds it.", WAIT_BUCKETS,
    ),
    Described(
        "belay_training_recovery_seconds", "histogram", ("stage",),
        "From the fault to the end of each stage of recoveries that training carried out without the engine.",
        TRAINING_BUCKETS,
    ),
    Described("belay_training_ranks_lost", "counter", ("namespace", "job"), "Ranks lost in such recoveries."),
)  # fmt: skip
BY_NAME: Final = {metric.name: metric for metric in METRICS}


__all__ = ["BY_NAME", "METRICS", "TRAINING_BUCKETS", "Described"]
