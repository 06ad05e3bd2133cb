"""The words of a log, looked at before its text is searched: most rules name words that are not in it at all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

_WORD: Final = re.compile(rb"[a-z0-9_]{3,}")
#: Words of a text, the longest first: it is the rarest.
_MOST: Final = 3


class Vocabulary:
    """The words of a lower-case text. A rule's text can only be in it where each of its words is part of one of these;
    that is asked of the words, which are far fewer than the bytes."""

    def __init__(self, lowered: bytes) -> None:
        self._words = set(_WORD.findall(lowered))
        self._joined = b" ".join(self._words)
        self._known: dict[bytes, bool] = {}

    def may_hold(self, texts: Sequence[bytes]) -> bool:
        """False where one of the texts cannot be there."""
        return all(self._has(word) for text in texts for word in _words(text))

    def _has(self, word: bytes) -> bool:
        known = self._known.get(word)
        if known is None:
            known = word in self._words or word in self._joined
            self._known[word] = known
        return known


@lru_cache(maxsize=8192)
def _words(text: bytes) -> tuple[bytes, ...]:
    return tuple(sorted(_WORD.findall(text), key=len, reverse=True)[:_MOST])
