"""A seeded sample of every small mistake in every sample; ``make soak`` makes them all."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.edits.mutations import Edit, every_edit
from tests.edits.reader import read
from tests.edits.world import samples, world

SAMPLED = 600
PARTS = 2


@pytest.mark.parametrize("part", range(PARTS))
def test_no_edit_of_a_sample_deletes_isolates_evicts_or_resets_what_its_text_does_not_ask_for(part: int) -> None:
    chosen = random.Random(20261).sample(list(every_edit(samples())), SAMPLED)
    kinds: Counter[str] = Counter()
    for number, edit in enumerate(sorted(chosen)[part::PARTS]):
        refused, _ = world().check(edit, twice=number % 20 == 0)
        kinds["refused" if refused else "accepted"] += 1
    assert kinds["refused"] > 60 and kinds["accepted"] > 60, "the sample has edits of both sorts"


def test_a_deletion_that_the_text_asks_for_is_one_and_a_misread_one_is_none() -> None:
    path, text = "desired/jobs/pretrain.yaml", samples()["desired/jobs/pretrain.yaml"]
    name = text.index(b"  name: pretrain\n") + len(b"  name: pretrain")
    assert world().check(Edit(path, "insert", name, "-")) == (True, 0)
    assert world().check(Edit(path, "delete", name - 1)) == (False, 1)
    assert world().check(Edit(path, "delete", text.index(b"kind: AscendJob") + 7)) == (True, 0)
    assert world().check(Edit(path, "cut", text.index(b"---\n"))) == (False, 1), "half a file that is a whole document"


def test_the_correct_reader_reads_the_samples_and_refuses_what_cannot_be_used() -> None:
    named = {name for text in samples().values() for name in read(text).declared or ()}
    assert named >= {"AscendJob/default/pretrain", "Isolation/cooling", "SafetyBudget/cluster", "NodePool/training"}
    for bad in (b"a: 'x\n", b"- a\n", b"apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n",
                b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: A}\n",
                b"apiVersion: v1\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"):  # fmt: skip
        assert read(bad).declared is None
    assert read(b"# nothing\n").declared == {}
