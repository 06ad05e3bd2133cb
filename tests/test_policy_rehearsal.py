"""Tests that fault policies carry: played with the planner's own judgement, failures at file:line:col."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from belay.engine import cli
from belay.engine.load import load
from belay.engine.simulate import rehearsal
from belay.engine.simulate.rehearsal import rehearse

HEAD = "apiVersion: belay.dev/v1alpha1\nkind: FaultPolicy\nmetadata: {name: p}\nspec:\n"


def failures(spec: str, more: dict[str, bytes] | None = None) -> list[str]:
    """Messages of the failed expectations of a policy ``p``, with their path."""
    loaded = load({"policies/p.yaml": (HEAD + spec).encode(), **(more or {})})
    assert [str(d) for d in loaded.diagnostics] == []
    policy = next(item for item in loaded.desired.fault_policies if item.document.name == "p")
    return [f"{'.'.join(map(str, f.path))}: {f.message}" for f in rehearse(loaded.desired, policy)]


def one(timeline: str, expect: str, rest: str = "") -> str:
    """A spec with one test."""
    return f"{rest}  tests:\n    - timeline: [{timeline}]\n      expect: [{expect}]\n"


LEVELS = '  levels: {"80DE0207": SeparateNPU}\n'
FREQUENCY = '  frequency: [{codes: ["80DE0207"], times: 3, window: 1h, level: PreSeparateNPU, releaseAfter: 2h}]\n'
DURATION = '  duration: [{codes: ["80DE0207"], timeout: 30s, recover: 60s, level: SeparateNPU}]\n'
ONCE = '{at: 0s, code: "80DE0207", assertion: once}'


@pytest.mark.parametrize(
    ("rest", "timeline", "expect"),
    [
        # the shipped table, then an override; a code's case does not matter
        ("", '{at: 0s, code: "80de0207"}', "{at: 0s, level: SubHealthFault, inService: true, action: ignore}"),
        (LEVELS, '{at: 0s, code: "80DE0207"}', "{at: 0s, level: SeparateNPU, inService: false, action: isolate}"),
        (LEVELS, '{at: 0s, code: "80DE0207", use: training}', "{at: 1s, action: reschedule}"),
        (
            "  actions: {SeparateNPU: {training: keep}}\n",
            '{at: 0s, code: "80DF8402", use: training}',
            "{at: 1s, action: keep}, {at: 1s, inService: false}",
        ),
        # strictly longer than the timeout; the recovery counts from the end of the fault
        (DURATION, '{at: 0s, code: "80DE0207"}', "{at: 30s, level: SubHealthFault}, {at: 30.1s, level: SeparateNPU}"),
        (
            DURATION,
            '{at: 0s, code: "80DE0207"}, {at: 40s, code: "80DE0207", assertion: recover}',
            "{at: 100s, level: SeparateNPU}, {at: 101s, level: NormalNPU, inService: true}",
        ),
        # a recovery shorter than its time does not end the episode
        (
            DURATION,
            '{at: 0s, code: "80DE0207"}, {at: 40s, code: "80DE0207", assertion: recover}, {at: 90s, code: "80DE0207"}',
            "{at: 95s, level: SeparateNPU}",
        ),
        # events without a duration count as occurrences, and only those within the window do
        (
            FREQUENCY,
            f"{ONCE}, {ONCE.replace('0s', '10m')}, {ONCE.replace('0s', '20m')}",
            "{at: 15m, level: NormalNPU}, {at: 20m, level: PreSeparateNPU}, {at: 139m, level: PreSeparateNPU}, "
            "{at: 141m, level: NormalNPU}",
        ),
        (
            FREQUENCY,
            f"{ONCE}, {ONCE.replace('0s', '59m')}, {ONCE.replace('0s', '61m')}",
            "{at: 62m, level: NormalNPU}",
        ),
        # the parameter plane takes a chip from distributed work only
        ("", '{at: 0s, code: "81078603"}', "{at: 60s, level: PreSeparateNPU, inService: true, distributed: false}"),
        # an unlisted code isolates
        ("", '{at: 0s, code: "FFFF0001"}', "{at: 0s, level: SeparateNPU, action: isolate}"),
        # several servers and chips, each for itself
        (
            LEVELS,
            '{at: 0s, code: "80DE0207", node: a, chip: 7}',
            "{at: 1s, node: a, chip: 7, inService: false}, {at: 1s, node: b, chip: 7, inService: true}",
        ),
    ],
)
def test_a_test_of_a_policy_plays_its_rules(rest: str, timeline: str, expect: str) -> None:
    assert failures(one(timeline, expect, rest)) == []


def test_a_failed_expectation_says_what_was_found() -> None:
    found = failures(one('{at: 0s, code: "80DE0207", use: inference}', "{at: 1s, level: SeparateNPU, action: keep}"))
    assert found == [
        "spec.tests.0.expect.0.level: the test: 1s after its start chip 0 has level SubHealthFault, expected "
        "SeparateNPU (used for inference; 80DE0207)",
        "spec.tests.0.expect.0.action: the test: 1s after its start chip 0 has action strategy, expected keep "
        "(used for inference; 80DE0207)",
    ]


def test_a_shadow_policy_is_tested_as_if_it_were_enforced() -> None:
    rest = "  mode: shadow\n" + LEVELS
    assert failures(one('{at: 0s, code: "80DE0207"}', "{at: 1s, level: SeparateNPU}", rest)) == []


def test_the_servers_are_in_the_scope_of_the_policy() -> None:
    """A scope of pools, products, nodes and workloads covers the test's servers without naming them in every line."""
    pool = (
        b"apiVersion: belay.dev/v1alpha1\nkind: NodePool\nmetadata: {name: cards}\n"
        b"spec: {product: atlas-300i-duo, selector: {matchLabels: {a: b}}}\n"
    )
    rest = "  scope: {pools: [cards], nodes: [n7], workloads: [inference]}\n" + LEVELS
    found = one('{at: 0s, code: "80DE0207"}', "{at: 1s, level: SeparateNPU, action: reschedule}", rest)
    assert failures(found, {"policies/pool.yaml": pool}) == []
    other = one('{at: 0s, code: "80DE0207", use: training}', "{at: 1s, level: SubHealthFault}", rest)
    assert failures(other, {"policies/pool.yaml": pool}) == []
    elsewhere = one('{at: 0s, code: "80DE0207", node: n8}', "{at: 1s, node: n8, level: SubHealthFault}", rest)
    assert failures(elsewhere, {"policies/pool.yaml": pool}) == []


def test_events_that_cannot_be_played_are_reported() -> None:
    assert failures(one('{at: 0s, code: "80DE0207", chip: 8}', "{at: 1s, level: NormalNPU}")) == [
        "spec.tests.0.timeline.0.chip: the test names chip 8, a server of product atlas-800t-a2 has chips 0 to 7"
    ]
    assert failures(one('{at: 0s, code: "0100000D"}', "{at: 1s, level: NormalNPU}")) == [
        "spec.tests.0.timeline.0.code: 0100000D is a node code; tests of policies play faults of chips"
    ]


def test_a_test_that_asks_for_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "MAX_MOMENTS", 50)
    events = ", ".join(f'{{at: {n}s, code: "80DE0207"}}' for n in range(0, 60))
    assert failures(one(events, "{at: 1h, level: SeparateNPU}", DURATION)) == [
        "spec.tests.0.timeline: the test asks for more than 50 judgements: make it shorter"
    ]


def test_validate_points_at_the_failed_expectation(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    text = "# a comment\n---\n" + HEAD + one('{at: 0s, code: "80DE0207"}', "{at: 1s, level: SeparateNPU}")
    (folder / "p.yaml").write_text(text)
    result = CliRunner().invoke(cli.main, ["validate", str(tmp_path), "-o", "json"])
    body = json.loads(result.stdout)
    assert result.exit_code == 1 and body["errors"] == 1
    found = body["diagnostics"][0]
    line = text.splitlines()[found["line"] - 1]
    assert found["file"] == "policies/p.yaml" and line[found["column"] - 1 :].startswith("SeparateNPU")
    assert found["field"] == "spec.tests[0].expect[0].level" and found["object"] == "FaultPolicy/p"
    (folder / "p.yaml").write_text(text.replace("level: SeparateNPU", "level: SubHealthFault"))
    assert CliRunner().invoke(cli.main, ["validate", str(tmp_path)]).exit_code == 0


def test_every_shipped_and_sample_policy_carries_tests_that_hold() -> None:
    root = Path(__file__).parent.parent
    files = {
        str(path.relative_to(root)): path.read_bytes()
        for folder in ("desired", "policies")
        for path in sorted((root / folder).rglob("*.yaml"))
    }
    loaded = load(files)
    assert len(loaded.desired.fault_policies) >= 2
    for policy in loaded.desired.fault_policies:
        assert policy.document.spec.tests, f"{policy.origin} has no tests"
        assert rehearse(loaded.desired, policy) == []
