"""Documents of recorded moments, derived before they are asked for, so that a slider need not wait for the planner.

Those around the moment that was looked at last come first, the nearest of them before the others. One question is
asked at a time, so that another process stays free for what viewers ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from belay.engine.log import get
from belay.engine.serve.console import failures
from belay.engine.serve.console.answers import Unanswered

_log = get("console")
REACH: Final = 16
"""Moments before and after the one that is looked at, where the folder grows and is not read whole."""
PAUSE_SECONDS: Final = 5.0
"""Seconds before the next moment is tried when one could not be derived."""
RETRY_SECONDS: Final = 60.0
"""Seconds after which a moment is tried again whose derivation may succeed then; the others go on meanwhile."""


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
        self._put_off: dict[str, float] = {}  # until when, by the loop's clock

    def look(self, identity: str) -> None:
        """A viewer looks at this moment: its neighbours come next."""
        if identity != self._at:
            self._at = identity
            self._looked.set()

    async def run(self) -> None:
        """Derive documents until cancelled."""
        while True:
            self._looked.clear()
            wanted = None
            try:
                moments = await asyncio.to_thread(self._moments)
                present = set(moments)
                self._put_off = {identity: at for identity, at in self._put_off.items() if identity in present}
                now = asyncio.get_running_loop().time()
                wanted = self._next(moments, now)
                if wanted is None:
                    await self._wait(now)
                    continue
                await self._derive(wanted)
                self._put_off.pop(wanted, None)
                continue
            except Unanswered as error:
                # of a busy server or a child that ended the same question may be answered later
                again = math.inf if 400 <= error.status < 500 and error.status != 429 else RETRY_SECONDS
            except Exception:  # whatever a folder or a recording raises: the other moments are derived all the same
                failures.count("document")
                _log.exception("not read ahead", moment=wanted or "")
                again = RETRY_SECONDS
            if wanted is not None:
                self._put_off[wanted] = asyncio.get_running_loop().time() + again
            await asyncio.sleep(PAUSE_SECONDS)

    async def _wait(self, now: float) -> None:
        """Until a viewer looks elsewhere, or a moment that was put off may be tried again."""
        again = min((at for at in self._put_off.values() if now < at < math.inf), default=None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(again):
                await self._looked.wait()

    def _next(self, moments: Sequence[str], now: float) -> str | None:
        if not self._at and self.reach is not None:
            return None
        places = {identity: place for place, identity in enumerate(moments)}
        here = places.get(self._at, len(moments) - 1)
        reach = len(moments) if self.reach is None else self.reach
        near = range(max(0, here - reach), min(len(moments), here + reach + 1))
        missing = [place for place in near if self._is_wanted(moments[place], abs(place - here), now)]
        return moments[min(missing, key=lambda place: (abs(place - here), -place))] if missing else None

    def _is_wanted(self, identity: str, away: int, now: float) -> bool:
        """Near what is looked at a document may take the place of another one, elsewhere it must not."""
        if self._known(identity) or self._put_off.get(identity, -math.inf) > now:
            return False
        return away <= REACH or self._room()
