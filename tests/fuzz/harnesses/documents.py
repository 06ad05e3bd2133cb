"""What people write: documents in Git, cluster files, timelines, recordings, the Source."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from belay.engine.cli.acts import splices
from belay.engine.documents import Desired
from belay.engine.errors import InputError
from belay.engine.load import LoadCache, PriorState, load, load_directory, shipped_policies
from belay.engine.load.cluster import copies_from_git, foreign_documents
from belay.engine.load.locations import location_of
from belay.engine.load.parser import read_file
from belay.engine.load.source_file import read_source
from belay.engine.load.yaml12 import MAX_BYTES, YAMLProblem
from belay.engine.model.diagnostics import Origin
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from belay.engine.replay import cluster_file, recording
from belay.engine.sandbox import timeline as sandbox_timeline
from belay.engine.simulate import timeline
from tests.fuzz.execution import ROOT
from tests.fuzz.harness import Form, Harness, scratch

_CACHE: Final = LoadCache()
_NOW: Final = 1_788_249_600.0
_WORDS: Final = (
    b"apiVersion: belay.dev/v1alpha1\n",
    b"kind: FaultPolicy\n",
    b"kind: List\nitems:\n",
    b"spec:\n",
    b"metadata:\n",
    b"name: a\n",
    b"? [a]\n: b\n",
    b"&x [*x]",
    b"<<: [*a, *b]",
    b"!!python/object:os.system",
    b"!!set {a}",
    b"!!timestamp 2001-01-01",
    b"0o17",
    b"1:30:00",
    b".inf",
    b"\xe2\x80\xa8",
    b"|2-\n",
    b">+\n",
    b"%YAML 1.1\n---\n",
    b"%TAG ! x:\n---\n",
)


def _document(data: bytes, path: str = "desired/a.yaml") -> None:
    result = read_file(path, data)
    for found in result.diagnostics:
        assert found.file == path and found.line >= 1 and found.column >= 1, found
        assert found.message and len(found.message) < 2048, found
    files = {path: data}
    before = PriorState.of({path: [b"{", data]})
    loaded = load(files, before=before, cache=_CACHE, revision="a", shipped={})
    for found in loaded.diagnostics:
        assert len(found.message) < 2048, found
    location_of(files, Origin(path, 1, 1), ("spec", "a", 0))


def _edits(data: bytes) -> None:
    """Every edit of an act leaves a text that is read as it was meant, or is refused."""
    text = data.decode("utf-8", "replace")
    for number, body in enumerate(splices.bodies(text)[:3]):
        path = ("spec", "replicas")
        if isinstance(body, dict):
            assert splices.bodies(splices.with_value(text, number, path, 3))[number]["spec"]["replicas"] in (3, "3")
        splices.without_document(text, number)


def _json_document(data: bytes) -> None:
    _document(data, "desired/a.json")


def _repository(data: bytes) -> None:
    """With the shipped policies, whose names the document may mention, and as a copy in the cluster."""
    load({"policies/a.yaml": data}, cache=_CACHE)


def _copies(data: bytes) -> None:
    try:
        items = cluster_file.objects_of(data, "a")
    except InputError:
        return
    copies_from_git(items)
    load({}, foreign=foreign_documents(items), shipped={}, cache=_CACHE)


def _source(data: bytes) -> None:
    read_source(scratch(data, "source.yaml"))


def _simulated(data: bytes) -> None:
    timeline.read_timeline(str(scratch(data, "timeline.yaml")))


def _sandbox(data: bytes) -> None:
    sandbox_timeline.parse(data, "timeline.yaml")


@cache
def _sample() -> Desired:
    return load(load_directory(ROOT)).desired


def _planned(data: bytes) -> None:
    """What `belay plan --cluster FILE` does."""
    objects = cluster_file.objects_of(data, "cluster.json")
    plan(_sample(), observe(objects), _NOW)


def _replayed(data: bytes) -> None:
    found = recording.read(scratch(_packed(data), "a.belay.json.gz"))
    loaded = recording.declared(found)
    plan(loaded.desired, observe(found.objects, found.shard), found.now, shard=found.shard)


def _packed(data: bytes) -> bytes:
    """Seeds are plain JSON, so that values can be changed; bytes that look like gzip stay as they are."""
    return data if data[:2] == b"\x1f\x8b" else gzip.compress(data, 1, mtime=0)


def _small() -> Sequence[bytes]:
    """Forms of the hostile documents below that are read at once."""
    return [b"[" * 3_000, b"{a: " * 1_000, b"- " * 1_000, b"a: &a [x,x]\n" + b"b: [*a,*a]\n" * 100, b"\x00" * 100]


def _large() -> Sequence[bytes]:
    """Hostile documents found earlier."""
    codes = "".join(f"    - codes: ['{number:08X}']\n      level: RestartNPU\n" for number in range(20_000))
    head = "apiVersion: belay.dev/v1alpha1\nkind: FaultPolicy\nmetadata: {name: a}\nspec:\n  overrides:\n"
    bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"a{level}: &a{level} [{','.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 12)
    )
    return [
        (head + codes).encode()[: MAX_BYTES - 1],
        bomb.encode(),
        b"[" * 100_000,
        b"{a: " * 50_000,
        b"- " * 50_000,
        b"a: " * 20_000,
        b"? " * 20_000,
        b"x" * (MAX_BYTES + 1),
        b"&a " * 1000,
        b"a: 1\n" * 50_000,
        b"#" * 900_000,
        "".join(f"k{number}: 1\n" for number in range(60_000)).encode(),
        b"--- {}\n" * 30_000,
        b"\x00" * 1000,
    ]


def _large_json() -> Sequence[bytes]:
    return [b"[" * 200_000, b'{"a":' * 100_000, b'{"a":1,' * 30_000, b'"' + b"\\u0000" * 100_000 + b'"', b"1" * 500_000]


def _samples() -> Sequence[bytes]:
    """Every sample and shipped policy."""
    files = {**shipped_policies(), **load_directory(ROOT / "desired")}
    return [data for path, data in sorted(files.items()) if len(data) < 20_000 and path.endswith(".yaml")]


def _harness(name: str, feed: Any, *covers: str, **options: Any) -> Harness:
    return Harness(name, feed, covers, **options)


HARNESSES: Final = (
    _harness(
        "document-edits",
        _edits,
        "engine/cli/acts/splices.py",
        "engine/cli/acts/text_nodes.py",
        allowed=(InputError, YAMLProblem),
        form=Form.TEXT,
        words=_WORDS,
        steps=3_000_000,
        steps_per_byte=6_000,
        tries=0.3,
    ),
    _harness(
        "documents",
        _document,
        "engine/load/parser.py",
        "engine/load/yaml12.py",
        "engine/load/__init__.py",
        "engine/load/locations.py",
        form=Form.TEXT,
        words=_WORDS,
        seeds=_small,
        large=lambda: [*_large(), *_samples()],
        steps=1_500_000,
    ),
    _harness(
        "documents-json",
        _json_document,
        "engine/load/parser.py",
        "engine/load/yaml12.py",
        large=_large_json,
        steps=1_500_000,
    ),
    _harness(
        "policies",
        _repository,
        "engine/load/assembly.py",
        "engine/load/references.py",
        form=Form.TEXT,
        words=_WORDS,
        large=_samples,
        steps=3_000_000,
    ),
    _harness("cluster-copies", _copies, "engine/load/cluster.py", steps=2_000_000),
    _harness("source-file", _source, "engine/load/source_file.py", allowed=(InputError,), form=Form.TEXT),
    _harness("simulate-timeline", _simulated, "engine/simulate/timeline.py", allowed=(InputError,), form=Form.TEXT),
    _harness("sandbox-timeline", _sandbox, "engine/sandbox/timeline.py", allowed=(InputError,), form=Form.TEXT),
    _harness(
        "cluster-file",
        _planned,
        "engine/replay/cluster_file.py",
        allowed=(InputError,),
        large=lambda: [*_large(), *_large_json()],
        steps=5_000_000,
        tries=0.2,
    ),
    _harness("recording", _replayed, "engine/replay/recording.py", allowed=(InputError,), steps=8_000_000, tries=0.2),
)
