"""Documents of recorded moments, derived before they are asked for, so that a slider need not wait for the planner.

Those around the moment that was looked at last come first, the nearest of them before the others. One question is
asked at a time, so that another process stays free for what viewers ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from engine.serve.console.answers import Unanswered

REACH: Final = 16
"""Moments before and after the one that is looked at, where the folder grows and is not read whole."""
PAUSE_SECONDS: Final = 5.0
"""Seconds before the next moment is tried when one could not be derived."""


class ReadAhead:
    """``moments`` names the recorded moments in order of time, ``derive`` makes the document of one and keeps it,
    ``known`` says whether that has happened, ``room`` whether more can be kept. ``reach`` None: every moment is
    derived, as long as there is room.
    """

    def __init__(
        self,
        moments: Callable[[], Sequence[str]],
        derive: Callable[[str], Awaitable[object]],
        known: Callable[[str], bool],
        room: Callable[[], bool],
        reach: int | None = REACH,
    ) -> None:
        self._moments, self._derive, self._known, self._room, self.reach = moments, derive, known, room, reach
        self._at, self._looked = "", asyncio.Event()
        self._failed: set[str] = set()

    def look(self, identity: str) -> None:
        """A viewer looks at this moment: its neighbours come next."""
        if identity != self._at:
            self._at = identity
            self._looked.set()

    async def run(self) -> None:
        """Derive documents until cancelled."""
        while True:
            self._looked.clear()
            wanted = self._next(await asyncio.to_thread(self._moments))
            if wanted is None:
                await self._looked.wait()
                continue
            try:
                await self._derive(wanted)
            except Unanswered:
                self._failed.add(wanted)
                await asyncio.sleep(PAUSE_SECONDS)

    def _next(self, moments: Sequence[str]) -> str | None:
        if not self._at and self.reach is not None:
            return None
        places = {identity: place for place, identity in enumerate(moments)}
        here = places.get(self._at, len(moments) - 1)
        reach = len(moments) if self.reach is None else self.reach
        near = range(max(0, here - reach), min(len(moments), here + reach + 1))
        missing = [place for place in near if self._is_wanted(moments[place], abs(place - here))]
        return moments[min(missing, key=lambda place: (abs(place - here), -place))] if missing else None

    def _is_wanted(self, identity: str, away: int) -> bool:
        """Near what is looked at a document may take the place of another one, elsewhere it must not."""
        if identity in self._failed or self._known(identity):
            return False
        return away <= REACH or self._room()
