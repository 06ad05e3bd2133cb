"""Any input gives diagnostics, and accepted documents are valid."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belay.engine.load import LoadCache, PriorState, load, load_directory
from belay.engine.load.parser import read_file
from tests.test_documents import MINIMAL

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-5, 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "0-3", "10%", "90s", "static", "default", "81078603", "2026-01-01T00:00:00Z", "a" * 300])
)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "chips", "0"]), inner, max_size=3)
    ),
)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """One of Belay's documents with some parts replaced, removed or added."""
    kind = draw(st.sampled_from(sorted(MINIMAL)))
    body: dict[str, Any] = {"apiVersion": "belay.dev/v1alpha1", "kind": kind, "metadata": {"name": "x"}}
    body["spec"] = copy.deepcopy(MINIMAL[kind])
    for _ in range(draw(st.integers(0, 3))):
        spot: Any = body
        while True:
            key = draw(st.sampled_from(sorted(spot)) if isinstance(spot, dict) else st.integers(0, len(spot) - 1))
            inner = spot[key]
            if isinstance(inner, (dict, list)) and inner and draw(st.integers(0, 3)):
                spot = inner
                continue
            if isinstance(spot, dict) and draw(st.booleans()):
                del spot[key]
                spot[draw(st.sampled_from(["new", key]))] = draw(ANYTHING)
            else:
                spot[key] = draw(ANYTHING)
            break
    return body


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(documents(), min_size=1, max_size=3), st.booleans())
def test_mangled_documents_are_refused_or_valid(bodies: list[dict[str, Any]], remembered: bool) -> None:
    files = {f"desired/{number}.json": orjson.dumps(body) for number, body in enumerate(bodies)}
    cache = LoadCache()
    older = {path: [data, b"{", data] for path, data in files.items()} if remembered else {}
    loaded = load(files, before=PriorState.of(older), cache=cache)
    desired = loaded.desired
    documents = (*desired.pools, *desired.layouts, *desired.fault_policies, *desired.isolations, *desired.budgets)
    for declared in (*documents, *desired.scheduling, *desired.links, *desired.products.values()):
        assert type(declared.document).model_validate(declared.document.manifest()) == declared.document
    for found in loaded.diagnostics:
        assert found.line >= 1 and found.column >= 1 and found.message and len(found.message) < 2048
    again = load(files, before=PriorState.of(older), cache=cache)
    assert (again.diagnostics, again.desired, again.good) == (loaded.diagnostics, desired, loaded.good)


SAMPLES = sorted(load_directory(Path(__file__).parent.parent).items())


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SAMPLES), st.data())
def test_a_damaged_sample_is_refused_or_read(sample: tuple[str, bytes], data: st.DataObject) -> None:
    path, text = sample
    at = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(at, min(len(text), at + 40)))
    piece = data.draw(
        st.sampled_from([b"", b"\t", b": ", b"- ", b"[", b"}", b"&a ", b"*a", b"\n", b"'", b"0", b"\x00", b"\xff"])
    )
    for found in read_file(path, text[:at] + piece + text[end:]).diagnostics:
        assert found.file == path and found.line >= 1 and found.column >= 1
