"""Phases of Volcano Jobs and PodGroups.

Source: github.com/volcano-sh/apis/pkg/apis/batch/v1alpha1/job.go and scheduling/types.go.
"""

from __future__ import annotations

from enum import StrEnum


class VolcanoJobPhase(StrEnum):
    """Phase of a Volcano Job; Inqueue is that of its PodGroup, which older versions wrote here too."""

    PENDING = "Pending"
    INQUEUE = "Inqueue"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    COMPLETING = "Completing"
    TERMINATING = "Terminating"
    ABORTING = "Aborting"
    COMPLETED = "Completed"
    FAILED = "Failed"
    TERMINATED = "Terminated"
    ABORTED = "Aborted"


class PodGroupPhase(StrEnum):
    """Phase of a PodGroup."""

    PENDING = "Pending"
    INQUEUE = "Inqueue"
    RUNNING = "Running"
    UNKNOWN = "Unknown"
    COMPLETED = "Completed"
