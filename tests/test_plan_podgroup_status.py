"""The status of PodGroups while Belay schedules, as `belay plan` plans it from a file."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from engine.model.plan import Pending
from engine.plan.groupstatus import Counts, phase
from engine.plan.place.verdict import QUEUE_EXHAUSTED
from tests import listing
from tests.jobs import merge

WAITS = Pending("PodGroup", "train", "j", (), "NPUResourceShortage", "no chips", {}, None)
FULL = Pending("PodGroup", "train", "j", (), QUEUE_EXHAUSTED, "no quota", {}, None)


@pytest.mark.parametrize(
    ("old", "numbers", "least", "pending", "wanted"),
    [
        ("", Counts(0, 0, 0, 0, 0), 2, None, "Inqueue"),
        ("Pending", Counts(0, 0, 0, 0, 2), 2, WAITS, "Inqueue"),
        ("", Counts(0, 0, 0, 0, 2), 2, FULL, "Pending"),
        ("Inqueue", Counts(1, 0, 0, 2, 0), 2, None, "Running"),
        ("Running", Counts(2, 0, 0, 2, 1), 2, WAITS, "Running"),
        ("Running", Counts(1, 0, 0, 1, 1), 2, WAITS, "Unknown"),
        ("Running", Counts(1, 1, 0, 2, 0), 2, None, "Running"),
        ("Running", Counts(0, 2, 0, 2, 0), 2, None, "Completed"),
        ("Completed", Counts(0, 0, 0, 0, 0), 2, None, "Completed"),
        ("Running", Counts(0, 0, 2, 0, 0), 2, None, "Inqueue"),
    ],
)
def test_phases(old: str, numbers: Counts, least: int, pending: Pending | None, wanted: str) -> None:
    assert phase(old, numbers, least, pending) == wanted


def patches(items: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    body = listing.plan(items, folder).body
    return [a for a in body["actions"] if a["kind"] == "PatchObject" and a["objectKind"] == "PodGroup"]


def test_a_group_that_waits_says_why_and_once(tmp_path: Path) -> None:
    items = [listing.node("n1"), listing.report("n1"), *listing.job("big", 2, 8)]
    (found,) = patches(items, tmp_path)
    assert found["reason"] == "PodGroupInqueue"
    (condition,) = found["patch"]["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "Unschedulable", "True", "NotEnoughResources",
    )  # fmt: skip
    assert condition["message"].startswith("2/2 tasks in gang unschedulable: ")
    after = copy.deepcopy(items)
    after[2] = merge(after[2], found["patch"])
    assert patches(after, tmp_path) == []


def test_a_group_whose_pods_run_is_running_and_then_left_alone(tmp_path: Path) -> None:
    items = [
        listing.node("n1"), listing.report("n1", busy=range(8)), listing.group("j", 1, 8),
        listing.pod("j-0", on="n1", chips=range(8), group="j"),
    ]  # fmt: skip
    (found,) = patches(items, tmp_path)
    status = found["patch"]["status"]
    assert (status["phase"], status["running"]) == ("Running", 1)
    assert [c["type"] for c in status["conditions"]] == ["Scheduled"]
    items[2] = merge(items[2], found["patch"])
    assert patches(items, tmp_path) == []


def test_a_group_without_pods_is_let_in_so_that_an_operator_makes_them(tmp_path: Path) -> None:
    (found,) = patches([listing.node("n1"), listing.report("n1"), listing.group("j", 2, 8)], tmp_path)
    assert found["patch"] == {"status": {"phase": "Inqueue"}}
    assert found["preconditions"] == {"patchType": "merge", "uid": "u-j"}


def test_groups_of_other_schedulers_are_theirs(tmp_path: Path) -> None:
    other = listing.pod("j-0", count=8, group="j", spec={"schedulerName": "someone-else"})
    assert patches([listing.node("n1"), listing.report("n1"), listing.group("j", 1, 8), other], tmp_path) == []
