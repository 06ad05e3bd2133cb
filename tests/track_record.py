"""`docs/track-record.md`: every promise with its tests, and each past breach with its own: ``make reference``.

Random cases that were tried are counted by ``make soak`` in ``tests/soak/tried.json``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "track-record.md"
TRIED = ROOT / "tests" / "soak" / "tried.json"


class Promise(NamedTuple):
    """What Belay promises, the tests that hold it, and the kinds of ``make soak`` that try it at random."""

    title: str
    text: str
    tests: tuple[str, ...]
    soaks: tuple[str, ...]


class Breach(NamedTuple):
    """What once happened, its cause in a few words, and the test that fails where it comes back."""

    what: str
    cause: str
    test: str


PROMISES = (
    Promise(
        "No pod is lost",
        "A chip has one owner, a gang starts whole or not at all, and no running pod goes without a stated reason.",
        (
            "test_sim.py::test_histories_hold_their_invariants_and_heal",
            "test_sim.py::test_a_death_at_any_point_is_survived",
            "properties/test_histories.py::test_every_history_keeps_the_invariants_and_comes_to_rest",
            "properties/test_place_properties.py::test_placement_invariants",
            "test_act.py::test_chips_are_claimed_once_and_claims_end",
            "test_act.py::test_a_pod_that_is_another_by_now_is_not_bound",
        ),
        ("simulated", "cluster", "stuck"),
    ),
    Promise(
        "No chip is reset twice, and none in use",
        "An epoch runs at most once, whatever is doubled, killed or restarted; a chip in use is never reset.",
        (
            "properties/test_reset_safety.py::test_no_chip_in_use_is_reset_and_no_epoch_runs_twice",
            "properties/test_health_properties.py::test_nothing_in_use_is_reset_and_budgets_hold",
            "test_agent_orders.py::test_a_redelivered_order_never_runs_twice",
            "test_agent_crash.py::test_a_power_cut_at_any_step_never_repeats_an_epoch",
            "test_act.py::test_epochs_only_grow_and_a_chip_in_use_is_not_reset",
        ),
        ("simulated", "cluster"),
    ),
    Promise(
        "No deletion by mistake",
        "Text that cannot be read deletes nothing; an empty tree or layer and large deletions wait for a person.",
        (
            "test_edits.py::test_no_edit_of_a_sample_deletes_isolates_evicts_or_resets_what_its_text_does_not_ask_for",
            "test_git_mistakes.py::test_mistakes_pushed_to_the_running_engine_delete_nothing_and_mending_prunes_again",
            "test_source.py::test_an_empty_tree_is_refused_and_the_last_revision_stays",
            "test_source.py::test_a_renamed_folder_of_a_layer_deletes_nothing",
            "test_sync_pruning.py::test_removed_pools_and_policies_delete_nothing",
        ),
        ("edits",),
    ),
    Promise(
        "No token reaches beyond its node",
        "With admission or without, an agent's credential changes what belongs to its own node; orders can be signed.",
        (
            "test_doors.py::test_every_verb_on_every_resource_does_what_the_table_says",
            "test_admission.py::test_an_agent_writes_the_reports_of_its_node_only",
            "test_admission.py::test_an_agent_annotates_pods_of_its_node",
            "test_admission.py::test_an_agent_changes_what_device_plugins_write_on_its_own_node",
            "test_signed_orders.py::test_a_forged_or_old_order_is_refused_and_takes_no_epoch",
        ),
        (),
    ),
    Promise(
        "The status is true",
        "Ready and Applied are True only while every declared object is in force, and Unknown without passes.",
        (
            "test_truth.py::test_every_true_that_is_shown_holds_in_the_world",
            "test_truth.py::test_a_lie_is_found",
            "test_freshness.py::test_the_controller_says_why_no_pass_comes",
            "test_freshness.py::test_ready_is_unknown_while_no_pass_comes",
            "test_refusals.py::test_a_document_in_a_missing_namespace_is_refused_and_not_in_force_until_the_namespace_exists",
        ),
        ("truth",),
    ),
    Promise(
        "What is foretold and advised is true",
        "A forecast says who runs where, who waits and why; a job that waits is placed once its way out is followed.",
        (
            "properties/test_forecasts.py::test_the_forecast_and_the_cluster_agree_on_who_runs_where_who_waits_and_who_went",
            "test_ways_out.py::test_each_reason_has_a_world_whose_way_out_is_followed",
        ),
        ("forecasts", "ways-out"),
    ),
)

BREACHES = (
    Breach(
        "A job in a namespace that does not exist was reported as in force, and tried three times a second",
        "`Applied` came from reading Git; outcomes of actions reached no status",
        "test_refusals.py::test_a_document_in_a_missing_namespace_is_refused_and_not_in_force_until_the_namespace_exists",
    ),
    Breach(
        "No pass for 14 minutes while `Ready` was True: a stranger held the shard's Lease",
        "nothing watched that passes come",
        "test_freshness.py::test_the_controller_says_why_no_pass_comes",
    ),
    Breach(
        "A Lease with a duration of 68 years would have stopped the engine for as long",
        "the duration that a foreign Lease states was believed",
        "test_freshness.py::test_a_foreign_lease_is_believed_for_a_minute_without_renewal_whatever_it_states",
    ),
    Breach(
        "`git mv desired Desired` deleted every job of a small cluster within 15 s",
        "only a wholly empty tree was refused",
        "test_source.py::test_a_renamed_folder_of_a_layer_deletes_nothing",
    ),
    Breach(
        "Two agents on one node ran the same epoch",
        "each had a journal of its own",
        "test_agent_fleet.py::test_a_second_agent_waits_for_the_end_of_the_first_and_runs_no_epoch_again",
    ),
    Breach(
        "An object of Belay's kinds whose deletion the API server refused went on saying Ready",
        "objects that Git no longer declares were not judged",
        "test_document_conditions.py::test_an_object_whose_deletion_is_refused_is_not_ready",
    ),
    Breach(
        "One node's token changed the image of any pod, `coredns` and any Node",
        "RBAC knows no names, and what checks them was optional",
        "test_doors.py::test_every_verb_on_every_resource_does_what_the_table_says",
    ),
    Breach(
        "Without admission one node's token wrote each ConfigMap of `kube-system`, and a server's replaced orders",
        "rights that admission bounds were granted for every name where it was declined",
        "test_doors.py::test_every_verb_on_every_resource_does_what_the_table_says",
    ),
    Breach(
        "With several shards, isolated chips of the others were in ClusterD's lists and gone with every pass",
        "each shard wrote the lists of all nodes from its own view",
        "test_shards.py::test_lists_of_all_nodes_have_one_writer_and_do_not_flip",
    ),
    Breach(
        "The engine's account ended pods of `kube-system`, and a server took the Lease that the engine works by",
        "admission looked at creations and changes of a few kinds",
        "test_admission.py::test_a_real_api_server_keeps_accounts_to_their_own",
    ),
    Breach(
        "Policies of newer API servers let the engine write Services of `kube-system`, and agents set finalizers",
        "they listed kinds and parts, and a new one was missing",
        "test_doors.py::test_every_verb_on_every_resource_does_what_the_table_says",
    ),
    Breach(
        "Pods of `kube-system` with Volcano's scheduler name were placed, and evicted from failed nodes",
        "whether a pod is Belay's was asked by its scheduler's name alone",
        "properties/test_bystanders.py::test_no_action_is_about_a_pod_of_another_scheduler_or_of_the_system",
    ),
    Breach(
        "Deletions that were held back for an hour counted as in force",
        "`Applied` came from reading Git",
        "test_sync_pruning.py::test_what_is_held_back_is_not_in_force_and_the_status_says_until_when",
    ),
    Breach(
        "A pool's selector with one wrong letter took all its nodes away without a word",
        "nothing compared a pool with what it was",
        "test_pools.py::test_a_selector_that_loses_all_its_nodes_is_reported_until_it_is_mended",
    ),
    Breach(
        "A wrong product had the engine order the reset of the wrong ring; only the agent refused",
        "the product was believed against the nodes' own reports",
        "test_pools.py::test_a_product_that_the_nodes_contradict_is_an_error_and_resets_nothing",
    ),
    Breach(
        "A queue below its use and budgets of zero came into force without a word",
        "values were checked by type alone",
        "test_pools.py::test_limits_of_zero_are_warnings_at_push",
    ),
    Breach(
        "Running pods kept an older template and nothing said so",
        "templates of pods were not compared",
        "test_template_changes.py::test_running_pods_of_an_older_template_are_reported_until_they_restart",
    ),
    Breach(
        "A job named `on` became another job",
        "YAML 1.2 reads a text where Kubernetes reads a boolean",
        "test_validate.py::test_a_name_that_kubernetes_reads_as_another_type_is_refused_with_the_hint_to_quote_it",
    ),
    Breach(
        "A client of another job took 95 of 100 orders meant for a job's proxy",
        "the answer of the check was not used",
        "training/test_bus.py::test_the_stream_of_another_jobs_member_cannot_be_taken",
    ),
    Breach(
        "A stranger joined a training job as a node: 4 steps done instead of 160",
        "nodes proved nothing to each other",
        "training/test_proof.py::test_a_stranger_is_sent_a_fresh_number_at_most_and_never_joins",
    ),
    Breach(
        "A container had a file mounted outside its root",
        "the target was checked by a descriptor, and mounted on by its name",
        "test_oci_mount_race.py::test_a_link_put_at_the_target_meanwhile_leads_nowhere",
    ),
    Breach(
        "`belay checkpoint verify` and `convert` waited for ever at a pipe",
        "files were opened before they were looked at",
        "training/test_checkpoint_sets.py::test_a_pipe_among_the_files_is_named_and_waited_for_by_no_verb",
    ),
    Breach(
        "`belay checkpoint prune` renamed a set that is a link, and ended with an error",
        "links were taken for folders",
        "training/test_checkpoint_sets.py::test_of_a_set_that_is_a_link_only_the_link_is_removed",
    ),
    Breach(
        "Megatron's drop-in ran code from checkpoints where torch 2.6 does not",
        "its default was that of older versions",
        "training/test_checkpoint_mindio_acp.py::test_megatron_loads_code_where_its_torch_does_so_unasked",
    ),
    Breach(
        "A server that admits few callers relayed an anonymous call to one that admits all",
        "it was judged by the serving server alone",
        "test_grpc_access.py::test_a_server_relays_only_what_it_would_admit_itself",
    ),
    Breach(
        "One viewer held all streams of the console",
        "nothing was kept for others",
        "test_console_changes.py::test_one_viewer_leaves_streams_for_others",
    ),
    Breach(
        "Commands ended in a traceback where their output was closed",
        "the stream was flushed without being there",
        "test_validate.py::test_a_closed_stream_is_no_bug",
    ),
    Breach(
        "Redis out of memory wrote one traceback a timer",
        "errors of the broker were logged whole",
        "test_log.py::test_a_redis_that_refuses_leaves_no_traceback",
    ),
    Breach(
        "`belay plan` foretold another reason for a waiting job than the cluster then had",
        "it ended before nodes were reserved for a job that waits long",
        "properties/test_forecasts.py::test_the_forecast_and_the_cluster_agree_on_who_runs_where_who_waits_and_who_went",
    ),
    Breach(
        "A deletion that a budget holds back was said to be refused by the API server",
        "a refusal ended only with another try",
        "test_sync_pruning.py::test_a_refused_deletion_that_the_budget_holds_back_is_held_and_not_refused",
    ),
)


def page() -> str:
    """The page's text."""
    tried: dict[str, dict[str, int]] = json.loads(TRIED.read_text())
    parts = [
        "# Track record\n\n"
        "What Belay promises, which tests hold it, how many random cases were tried, and what was once broken.\n"
        "Written by `make reference` from `tests/track_record.py`; a row without a running test fails a test.\n"
        "`make soak` counts its cases in `tests/soak/tried.json`; the numbers begin where the counting began.\n"
    ]
    for promise in PROMISES:
        parts.append(f"\n## {promise.title}\n\n{promise.text}\n\n")
        parts += [f"- `{test}`\n" for test in promise.tests]
        parts += [_tried(kind, tried.get(kind, {})) for kind in promise.soaks]
    parts.append("\n## Past breaches\n\n| what happened | why | the test that would see it |\n|---|---|---|\n")
    parts += [f"| {one.what} | {one.cause} | `{one.test}` |\n" for one in BREACHES]
    return "".join(parts)


def _tried(kind: str, counts: dict[str, int]) -> str:
    return f"- `make soak`, kind `{kind}`: {counts.get('tried', 0):,} tried, {counts.get('failed', 0):,} failed\n"


def count(kind: str, tried: int, failed: int) -> None:
    """Add to what was tried of a kind of ``make soak``."""
    found = json.loads(TRIED.read_text())
    before = found.get(kind, {"tried": 0, "failed": 0})
    found[kind] = {"tried": before["tried"] + tried, "failed": before["failed"] + failed}
    TRIED.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    PAGE.write_text(page())
