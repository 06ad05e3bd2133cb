"""The driver's interface in either generation: its chips, and how a call addresses one.

A chip is addressed by a `ChipLocation`: v1 libraries use card and device, v2 libraries one id and no cards.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_uint32
from typing import Any, Final, NamedTuple

from belay.agents.drivers.dcmi.errors import DcmiError
from belay.agents.drivers.dcmi.library import Library
from belay.agents.drivers.failures import DriverError

MAX_CARDS, MAX_CHIPS = 64, 256
MAX_IN_CARD: Final = 8
NPU_TYPE: Final = 0


class ChipLocation(NamedTuple):
    """The location of one chip: physical and logic id, card and device; card is -1 where the interface has none."""

    phy: int
    logic: int
    card: int
    device: int


class Interface:
    """One initialised library. Raises DriverError when it answers neither generation. Everything here blocks."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.v2 = False
        try:
            library.call("dcmi_init")
        except DcmiError as first:
            try:
                library.call("dcmiv2_init")
            except DcmiError as second:
                raise DriverError(f"the driver does not answer: {first}; {second}") from second
            self.v2 = True
        self.missing = 0
        self.places = self._places()

    def _places(self) -> tuple[ChipLocation, ...]:
        found = list(self._places_v2() if self.v2 else self._places_v1())
        if not found:
            raise DriverError("the driver lists no NPU")
        return tuple(sorted(found))

    def _places_v1(self) -> list[ChipLocation]:
        count, cards = c_int(), (c_int * MAX_CARDS)()
        self.library.call("dcmi_get_card_list", byref(count), cards, MAX_CARDS)
        if not 0 <= count.value <= MAX_CARDS:
            raise DriverError(f"dcmi_get_card_list: {count.value} cards, at most {MAX_CARDS} are possible")
        places = []
        # a card that is being reset is counted, and named by a negative number
        named = [card for card in cards[: count.value] if card >= 0]
        self.missing = count.value - len(named)
        for card in named:
            number = c_int()
            self.library.call("dcmi_get_device_num_in_card", card, byref(number))
            if not 0 <= number.value <= MAX_IN_CARD:
                raise DriverError(f"card {card}: {number.value} devices are not possible")
            for device in range(number.value):
                kind, logic, phy = c_int(), c_int(), c_uint32()
                self.library.call("dcmi_get_device_type", card, device, byref(kind))
                if kind.value != NPU_TYPE:
                    continue
                self.library.call("dcmi_get_device_logic_id", byref(logic), card, device)
                self.library.call("dcmi_get_device_phyid_from_logicid", logic.value, byref(phy))
                places.append(self._checked(phy.value, logic.value, card, device))
        return places

    def _places_v2(self) -> list[ChipLocation]:
        ids, count = (c_int * MAX_CHIPS)(), c_int()
        self.library.call("dcmiv2_get_device_list", ids, byref(count), MAX_CHIPS)
        places = []
        listed = ids[: max(0, min(count.value, MAX_CHIPS))]
        named = [device for device in listed if device >= 0]
        self.missing = len(listed) - len(named)
        for device in named:
            phy = c_uint32()
            self.library.call("dcmiv2_get_chip_phy_id_by_dev_id", device, byref(phy))
            places.append(self._checked(phy.value, device, -1, device))
        return places

    @staticmethod
    def _checked(phy: int, logic: int, card: int, device: int) -> ChipLocation:
        if not 0 <= phy < MAX_CHIPS or not 0 <= logic < MAX_CHIPS:
            raise DriverError(f"card {card} device {device}: logic id {logic} or physical id {phy} is beyond 255")
        return ChipLocation(phy, logic, card, device)

    def place(self, phy: int) -> ChipLocation:
        """Return the location of a physical id. Raises DriverError when there is none."""
        for place in self.places:
            if place.phy == phy:
                return place
        raise DriverError(f"no chip {phy}")

    def _chip(self, name: str, place: ChipLocation, *arguments: Any, v2: str = "") -> None:
        """Call ``dcmi_NAME(card, device, …)`` or ``dcmiv2_NAME(device, …)``."""
        if self.v2:
            self.library.call(f"dcmiv2_{v2 or name}", place.device, *arguments)
        else:
            self.library.call(f"dcmi_{name}", place.card, place.device, *arguments)

    def _number(self, name: str, phy: int, kind: type[Any] = c_uint32, *before: Any) -> int:
        value = kind()
        self._chip(name, self.place(phy), *before, byref(value))
        return int(value.value)

    def _info(self, phy: int, main: int, sub: int, buffer: ctypes.Structure) -> None:
        size = c_uint32(ctypes.sizeof(buffer))
        self._chip("get_device_info", self.place(phy), main, sub, byref(buffer), byref(size))


def text(array: Any) -> str:
    """Return a zero-terminated array of bytes as text."""
    return bytes(array).split(b"\0", 1)[0].decode("utf-8", "replace").strip()
