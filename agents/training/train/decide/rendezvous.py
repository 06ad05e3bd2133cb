"""The key-value store of process groups, one per generation. Pure.

It replaces torch's TCPStore, which dies with the process that hosts it and keeps the keys of earlier attempts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

KEYS_LIMIT = 200_000
"""Maximum number of keys in one generation."""


@dataclass
class Answer:
    """The answer to request ``asked`` of a member; ``values`` in the order of the keys."""

    member: str
    asked: int
    values: list[bytes] = field(default_factory=list)
    number: int = 0
    error: str = ""


@dataclass
class _Waiting:
    member: str
    asked: int
    keys: list[str]
    values: bool


class Rendezvous:
    """Keys of the newest generation, and the members that wait for them."""

    def __init__(self) -> None:
        self.generation = 0
        self._keys: dict[str, bytes] = {}
        self._waiting: list[_Waiting] = []

    def begin(self, generation: int) -> None:
        """Forget older keys and waiting requests; the control threads of those ranks know that their generation is
        over."""
        self.generation = generation
        self._keys.clear()
        self._waiting.clear()

    def forget(self, member: str) -> None:
        """Drop the requests of a lost member."""
        self._waiting = [one for one in self._waiting if one.member != member]

    def ask(
        self, member: str, asked: int, generation: int, verb: str, keys: list[str], values: list[bytes], number: int = 0
    ) -> list[Answer]:
        """Answers to this request and to waiting ones that it completes; none while keys are missing."""
        if generation != self.generation:
            return [Answer(member, asked, error=f"generation {generation} is over, {self.generation} is current")]
        match verb:
            case "set":
                if len(self._keys) + len(keys) > KEYS_LIMIT:
                    return [Answer(member, asked, error=f"more than {KEYS_LIMIT} keys in one generation")]
                self._keys.update(zip(keys, values, strict=True))
                return [Answer(member, asked), *self._released()]
            case "add":
                total = int(self._keys.get(keys[0], b"0")) + number
                self._keys[keys[0]] = str(total).encode()
                return [Answer(member, asked, number=total), *self._released()]
            case "append":
                self._keys[keys[0]] = self._keys.get(keys[0], b"") + values[0]
                return [Answer(member, asked), *self._released()]
            case "compare_set":
                return self._compare_set(member, asked, keys[0], *values)
            case "check":
                return [Answer(member, asked, number=int(all(key in self._keys for key in keys)))]
            case "delete":
                return [Answer(member, asked, number=int(self._keys.pop(keys[0], None) is not None))]
            case "count":
                return [Answer(member, asked, number=len(self._keys))]
            case "get" | "wait":
                self._waiting.append(_Waiting(member, asked, keys, verb == "get"))
                return self._released()
        return [Answer(member, asked, error=f"the store has no operation {verb!r}")]

    def _compare_set(self, member: str, asked: int, key: str, expected: bytes, desired: bytes) -> list[Answer]:
        present = self._keys.get(key)
        if present == expected or (present is None and not expected):
            self._keys[key] = desired
            return [Answer(member, asked, [desired]), *self._released()]
        return [Answer(member, asked, [expected if present is None else present])]

    def _released(self) -> list[Answer]:
        ready = [one for one in self._waiting if all(key in self._keys for key in one.keys)]
        if not ready:
            return []
        self._waiting = [one for one in self._waiting if one not in ready]
        return [
            Answer(one.member, one.asked, [self._keys[key] for key in one.keys] if one.values else []) for one in ready
        ]
