"""torch's Store over the connection to the node agent: no TCPStore that ends with rank 0, and keys end with their
generation."""

from __future__ import annotations

import datetime

import torch.distributed as dist

from belay.agents.training.train.protocol import Store
from belay.agents.training.train.values import join, split
from belay.agents.training.train.worker.control import Control


class CoordinatorStore(dist.Store):  # type: ignore[misc]
    """The keys of one generation. Every method raises ``Interrupted`` once it is over."""

    def __init__(self, control: Control, generation: int) -> None:
        super().__init__()
        self._control = control
        self._generation = generation

    def _ask(self, verb: str, keys: list[str], values: list[bytes] | None = None, number: int = 0) -> tuple[int, bytes]:
        answer, payload = self._control.ask(self._generation, verb, keys, join(values or []), number)
        return answer.number, payload

    def set(self, key: str, value: bytes | str) -> None:
        self._ask("set", [key], [value.encode() if isinstance(value, str) else bytes(value)])

    def get(self, key: str) -> bytes:
        return split(self._ask("get", [key])[1])[0]

    def add(self, key: str, number: int) -> int:
        return self._ask("add", [key], number=int(number))[0]

    def append(self, key: str, value: bytes | str) -> None:
        self._ask("append", [key], [value.encode() if isinstance(value, str) else bytes(value)])

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        texts = [value.encode() if isinstance(value, str) else bytes(value) for value in (expected, desired)]
        return split(self._ask("compare_set", [key], texts)[1])[0]

    def check(self, keys: list[str]) -> bool:
        return bool(self._ask("check", list(keys))[0])

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        # the end of the generation is the time-out
        self._ask("wait", list(keys))

    def delete_key(self, key: str) -> bool:
        return bool(self._ask("delete", [key])[0])

    deleteKey = delete_key

    def num_keys(self) -> int:
        return self._ask("count", [])[0]

    getNumKeys = num_keys

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return split(self._ask("get", list(keys))[1])

    def multi_set(self, keys: list[str], values: list[bytes | str]) -> None:
        self._ask("set", list(keys), [value.encode() if isinstance(value, str) else bytes(value) for value in values])

    def has_extended_api(self) -> bool:
        return True


class FormingStore(CoordinatorStore):
    """The keys with which a gloo group connects: each rank sets ``STEM/RANK`` once and reads those of all others.

    Its own key is sent without waiting, and all others are asked for at once: a round trip instead of one for each of
    ``wait`` and ``get`` of every rank (``gloo/rendezvous/context.cc``).
    """

    def __init__(self, control: Control, generation: int, rank: int, world: int) -> None:
        super().__init__(control, generation)
        self._rank, self._world = rank, world
        self._stems: set[str] = set()
        self._known: dict[str, bytes] = {}

    def set(self, key: str, value: bytes | str) -> None:
        stem, _, last = key.rpartition("/")
        if last != str(self._rank):
            super().set(key, value)
            return
        self._stems.add(stem)
        self._control.check(self._generation)
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._control.send(Store(self._generation, 0, "set", (key,)), join([data]))

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        # what is known already must not lead on to the next rank of a group that is not needed any more
        self._control.check(self._generation)
        missing = [key for key in keys if key not in self._known]
        for stem in {key.rpartition("/")[0] for key in missing} & self._stems:
            # every rank sets its key below this stem, as this one did
            missing = [key for key in missing if key.rpartition("/")[0] != stem]
            missing += [f"{stem}/{rank}" for rank in range(self._world)]
        if missing:
            values = split(self._ask("get", missing)[1])
            self._known.update(zip(missing, values, strict=True))

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._known[key]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.wait(list(keys))
        return [self._known[key] for key in keys]
