"""Acts change their own lines only: over the YAML Test Suite and files as GitOps repositories hold them.

A sample of both; ``make soak`` (ROUND_TRIPS) makes every edit at every place of all of them.
"""

from __future__ import annotations

from collections import Counter

import pytest

from belay.engine.cli.acts import isolations, jobs, splices
from belay.engine.cli.acts.targets import target
from belay.engine.cli.acts.text_nodes import UneditableText
from belay.engine.errors import InputError
from belay.engine.load.yaml12 import YAMLProblem
from tests.round_trips.histories import editable, shapes, suite
from tests.round_trips.places import check_every_place, every_splice
from tests.round_trips.shapes import check_shape

EVERY_SPLICE, EVERY_SHAPE = 11, 31

DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: x}
spec:
  replicas: 2
"""


def test_no_edit_of_the_yaml_test_suite_touches_another_line_or_value() -> None:
    made = refused = number = 0
    for case in editable():
        splices_of_case = list(every_splice(case.text))
        chosen = {at for at in range(len(splices_of_case)) if (number + at) % EVERY_SPLICE == 0}
        tally = check_every_place(case.text, take=chosen.__contains__)
        made, refused, number = made + tally.made, refused + tally.refused, number + len(splices_of_case)
    assert len(editable()) > 230 and made > 250 and refused > 100, (len(editable()), made, refused)


def test_what_the_suite_calls_no_yaml_is_refused_with_a_place_or_stays_whole() -> None:
    refused = 0
    for case in suite():
        if not case.invalid:
            continue
        try:
            edited = splices.with_document(case.text, "kind: B\n")
        except UneditableText as error:
            refused += error.line > 0
        except YAMLProblem as error:
            pytest.fail(f"{case.name}: {error}")
        else:
            assert edited.startswith(case.text)
    assert refused > 70


def test_no_act_touches_another_line_of_files_as_repositories_hold_them() -> None:
    done: Counter[str] = Counter()
    assert len(shapes()) > 1000
    for shape in shapes()[::EVERY_SHAPE]:
        done += check_shape(shape)
    assert done["made"] > 100, done


def test_a_value_inside_of_what_others_share_is_refused() -> None:
    shared = "a: &x\n  n: 1\nb: *x\n"
    for edit in (
        lambda: splices.with_value(shared, 0, ("a", "n"), 2),
        lambda: splices.with_value(shared, 0, ("a", "m"), 2),
        lambda: splices.without(shared.replace("n: 1", "n: 1\n  m: 2"), 0, ("a", "n")),
    ):
        with pytest.raises(InputError, match="without touching other fields"):
            edit()


def test_a_document_that_begins_on_the_line_of_its_marker_stays_when_the_one_before_goes() -> None:
    assert splices.without_document("--- {a: 1}\n--- {b: 2}\n", 0) == "--- {b: 2}\n"
    assert splices.without_document("a: 1\n--- # Source: b.yaml\nb: 2\n", 0) == "--- # Source: b.yaml\nb: 2\n"
    below = "a: 1\n---\nb: 2\n---\n# kind: Later\n"
    assert splices.without_document(below, 1) == "a: 1\n---\n# kind: Later\n", "what waits below stays"
    assert splices.without_document("a: 1\n---\nb: 2\n\n# vim: ts=2\n", 1) == "a: 1\n# vim: ts=2\n"
    with pytest.raises(InputError, match="without touching others"):
        splices.without_document("%TAG ! tag:example.org,2000:\n--- a\n", 0)


def test_entries_in_braces_over_lines_come_and_go_with_their_lines_and_comments() -> None:
    nodes = "nodes: [\n  node-1,  # fan\n  node-2,  # optics, new\n  node-3   # ECC\n]\n"
    assert splices.without(nodes, 0, ("nodes", 1)) == nodes.replace("  node-2,  # optics, new\n", "")
    assert splices.without(nodes, 0, ("nodes", 2)) == nodes.replace("  node-3   # ECC\n", "")
    assert splices.with_item(nodes, 0, ("nodes",), "n") == nodes.replace("node-3   # ECC\n", "node-3,   # ECC\n  n\n")
    spec = "spec: {\n  a: 1,\n  b: 2,  # one, two\n}\n"
    assert splices.with_value(spec, 0, ("spec", "c"), 3) == spec.replace("two\n", "two\n  c: 3,\n")
    with pytest.raises(InputError, match="a comment stands beside"):
        splices.without("[a\n# why\n, b]\n", 0, (1,))


def test_tabs_line_ends_of_two_kinds_and_sets_are_edited_or_refused_at_their_line() -> None:
    tabs = "a: 1\t# one\nb:\t2\n"
    assert splices.with_value(tabs, 0, ("b",), 3) == "a: 1\t# one\nb:\t3\n"
    mixed = "a: 1\r\nb:\n  c: 2\nd: 3\r\n"
    assert splices.with_value(mixed, 0, ("b", "e"), 4) == "a: 1\r\nb:\n  c: 2\n  e: 4\nd: 3\r\n"
    assert splices.with_value(mixed, 0, ("e",), 4) == mixed + "e: 4\r\n"
    with pytest.raises(UneditableText) as refused:
        splices.with_value("k: 1\ns:\n  ? a\n", 0, ("s", "a"), 1)
    assert (refused.value.line, refused.value.column) == (3, 5)


def test_a_file_that_cannot_be_edited_is_named_with_its_line_and_the_reason() -> None:
    quoted = DEPLOYMENT.replace("replicas: 2", "replicas: &n 2")
    with pytest.raises(InputError, match="has an anchor or a tag") as refused:
        jobs.scale({"desired/x.yaml": quoted.encode()}, "x", 3)
    assert refused.value.where == "desired/x.yaml:5:13"

    item = "- apiVersion: apps/v1\n  kind: Deployment\n  metadata: {name: x}\n"
    listed = "apiVersion: v1\nkind: List\nitems:\n" + item.replace("x}", "y}") + item
    for files, where, why in (
        ({"desired/l.yaml": listed}, "desired/l.yaml:7", "it stands in a List"),
        ({"desired/x.json": '{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}}'},
         "desired/x.json:1", "JSON is not edited"),
        ({"desired/x.yaml": DEPLOYMENT + "  paused: [\n"}, "desired/x.yaml:7:1", "did not find expected"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=why) as refused:
            jobs.scale({path: text.encode() for path, text in files.items()}, "x", 3)
        assert refused.value.where == where

    with pytest.raises(InputError, match="without touching others") as refused:
        isolations.isolate({"desired/isolations.yaml": b"a: |\n  x\n   "}, [target("node-1")], "fan", None)
    assert refused.value.where.startswith("desired/isolations.yaml:")


def test_a_number_in_quotes_is_scaled_and_a_word_is_refused() -> None:
    job = "apiVersion: mindxdl.gitee.com/v1\nkind: AscendJob\nmetadata: {name: x}\nspec:\n  replicaSpecs:\n"
    quoted = f'{job}    Worker: {{replicas: "2"}}\n'
    edit = jobs.scale({"desired/x.yaml": quoted.encode()}, "x", 3)
    assert edit.files["desired/x.yaml"] == quoted.replace('"2"', '"3"').encode()
    with pytest.raises(InputError, match="'two' is no number"):
        jobs.scale({"desired/x.yaml": quoted.replace('"2"', "two").encode()}, "x", 3)
