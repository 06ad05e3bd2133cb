"""``python -m belay.agents.exporter``."""

import sys

from belay.agents.exporter.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
