"""The import root of Belay: all of it is imported as ``belay.engine…`` or ``belay.agents…``.

The folders lie at the top of the repository; a checkout has links to them here, and a wheel holds them below this file.
So no name of ours hides a module of the script that a user trains with, and none of theirs hides ours.
"""

from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).resolve().parent
_PACKAGED: Final = _HERE / "shipped"

IMPORT_ROOT: Final = _HERE.parent
"""The folder from which a child process imports Belay; it stands on the child's ``PYTHONPATH``."""
SHIPPED: Final = _PACKAGED if _PACKAGED.is_dir() else IMPORT_ROOT.parent
"""The folder of the data that come with Belay (``policies``, ``desired``, ``deploy``): the top of a checkout, or inside
the installed package."""
