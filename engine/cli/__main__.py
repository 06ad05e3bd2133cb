"""``python -m belay.engine.cli`` is ``belay``."""

from belay.engine.cli import main

if __name__ == "__main__":
    main(prog_name="belay")
