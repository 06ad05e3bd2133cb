"""The runtime's own reader and writer of JSON against Python's: thousands of random and damaged documents."""

from __future__ import annotations

import json
import math
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime_host import oci_programs

__all__ = ["oci_programs"]

ALPHABET = 'ab"\\/\b\f\n\r\t\x00\x1f\x7fé€😀\ud800\udc00'


@pytest.fixture(scope="module")
def program(oci_programs: Sequence[Path]) -> str:
    return str(oci_programs[0])


def check(program: str, *arguments: str, text: bytes) -> bytes | None:
    done = subprocess.run([program, "belay-check", *arguments], input=text, capture_output=True, timeout=60)
    assert done.returncode in (0, 1), f"ended by signal: {done.returncode} on {text!r}"
    return done.stdout if done.returncode == 0 else None


def through(program: str, documents: list[bytes]) -> list[bytes | None]:
    text = b"".join(b"%d\n%s" % (len(document), document) for document in documents)
    rest = check(program, "documents", text=text)
    assert rest is not None
    found: list[bytes | None] = []
    while rest:
        length, _, rest = rest.partition(b"\n")
        size = int(length)
        found.append(None if size < 0 else rest[:size])
        rest = rest[max(size, 0) :]
    assert len(found) == len(documents)
    return found


def python(document: bytes) -> Any:
    """What Python's json reads; raises ValueError where the text is not JSON of the RFC."""

    def refuse(name: str) -> Any:
        raise ValueError(name)

    # numbers as their text: the runtime keeps them as they are
    return json.loads(document.decode("utf-8"), parse_constant=refuse, parse_float=str, parse_int=str)


def pairs(value: Any) -> Any:
    """Surrogates without their pair as Go and the runtime read them."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [pairs(item) for item in value]
    return {pairs(name): pairs(item) for name, item in value.items()} if isinstance(value, dict) else value


def value(random: random.Random, depth: int = 0) -> Any:
    kind = random.randrange(9 if depth < 6 else 6)
    if kind < 2:
        return "".join(random.choices(ALPHABET, k=random.randrange(12)))
    if kind == 2:
        return random.choice([0, -1, 10 ** random.randrange(25), random.random(), -1e-300, 5e300])
    if kind < 6:
        return random.choice([None, True, False])
    names = ["".join(random.choices(ALPHABET, k=random.randrange(4))) for _ in range(random.randrange(6))]
    return {name: value(random, depth + 1) for name in names} if kind < 8 else [value(random, depth + 1) for _ in names]


def text(random: random.Random) -> bytes:
    ascii_only = random.random() < 0.5
    written = json.dumps(value(random), ensure_ascii=ascii_only, indent=random.choice([None, 0, 3]))
    return written.encode("utf-8", "replace")


def damaged(random: random.Random) -> bytes:
    document = bytearray(text(random) or b"0")
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(document) + 1)
        how = random.randrange(3)
        if how == 0:
            document[at:at] = bytes([random.choice(b'{}[]",:\\u0e-+.tn\x00\xc3\xed\xf5 ')])
        elif how == 1:
            del document[at : at + 1]
        else:
            document[at : at + 1] = bytes([random.randrange(256)])
    return bytes(document)


@pytest.mark.parametrize("seed", range(4))
def test_random_documents_read_as_python_reads_them(program: str, seed: int) -> None:
    dice = random.Random(seed)
    documents = [text(dice) for _ in range(1500)]
    for document, found in zip(documents, through(program, documents), strict=True):
        assert found is not None, document
        assert pairs(python(found)) == pairs(python(document)), document


@pytest.mark.parametrize("seed", range(4))
def test_damaged_documents_are_refused_exactly_where_python_refuses_them(program: str, seed: int) -> None:
    dice = random.Random(1000 + seed)
    documents, refused = [damaged(dice) for _ in range(1500)], 0
    for document, found in zip(documents, through(program, documents), strict=True):
        try:
            wanted = python(document)
        except ValueError:
            refused += 1
            assert found is None, document
            continue
        assert found is not None, document
        assert pairs(python(found)) == pairs(wanted), document
    assert 100 < refused < 1500


@pytest.mark.parametrize(
    "document",
    [
        b"", b" ", b"[", b'"', b'"\\', b'"\\u12', b"{", b'{"a"', b'{"a":', b'{"a":1,}', b"[1,]", b"[,]", b"01", b"1.",
        b".1",
        b"1e", b"-", b"+1", b"NaN", b"tru", b"1 2", b"[1}", b'{"a":1]', b'"\x01"', b'"\xff"', b'"\xc0\x80"',
        b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b"\xef\xbb\xbf{}", b"[" * 5000, b'{"a":' * 5000,
    ],
)  # fmt: skip
def test_what_is_no_json_is_refused_with_its_place(program: str, document: bytes) -> None:
    done = subprocess.run([program, "belay-check", "json"], input=document, capture_output=True, timeout=60)
    assert done.returncode == 1
    assert b"belay-oci-runtime check: 1:" in done.stderr


def test_nesting_is_bounded_and_enough_for_any_container(program: str) -> None:
    assert check(program, "json", text=b"[" * 512 + b"]" * 512) is not None
    assert check(program, "json", text=b"[" * 513 + b"]" * 513) is None


names = st.sampled_from(["linux", "resources", "devices", "hooks", "a"])
leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats().filter(math.isfinite)
documents = st.dictionaries(
    names,
    st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4), max_leaves=12
    ),
    max_size=5,
)


def appended(document: Any, path: list[str], items: list[Any]) -> Any:
    """The same edit on Python's values; None when the path is blocked."""
    name, rest = path[0], path[1:]
    if not isinstance(document, dict):
        return None
    below = document.get(name)
    if not rest:
        made = [] if below is None else below
        return {**document, name: [*made, *items]} if isinstance(made, list) else None
    made = appended({} if below is None else below, rest, items)
    return None if made is None else {**document, name: made}


@settings(max_examples=120, deadline=None)
@given(document=documents, path=st.lists(names, min_size=1, max_size=4), indent=st.sampled_from([None, 1]))
def test_an_edit_changes_its_own_place_only(program: str, document: Any, path: list[str], indent: int | None) -> None:
    before = json.dumps(document, indent=indent).encode()
    after = check(program, "append", ".".join(path), '{"x":1},2', text=before)
    wanted = appended(document, path, [{"x": 1}, 2])
    if wanted is None:
        assert after is None
        return
    assert after is not None
    assert json.loads(after) == json.loads(json.dumps(wanted))
    same = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before))
    rest = [cut for cut in range(same + 1) if after.startswith(before[:cut]) and after.endswith(before[cut:])]
    # what was null is replaced, everything else stays byte for byte
    null = [cut for cut in range(same + 1) if before[cut : cut + 4] == b"null" and after.endswith(before[cut + 4 :])]
    assert rest or null


def test_the_last_of_two_equal_names_counts_as_runc_reads_it(program: str) -> None:
    after = check(program, "append", "a", "3", text=b'{"a":[1],"a":[2]}')
    assert after == b'{"a":[1],"a":[2,3]}'


def test_a_large_document_is_no_trouble(program: str, tmp_path: Path) -> None:
    document = json.dumps([{"name": f"n{i}", "value": [i, None, "x" * 50]} for i in range(30_000)]).encode()
    found = check(program, "json", text=document)
    assert found is not None and json.loads(found) == json.loads(document)
