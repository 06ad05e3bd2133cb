"""``python -m engine.cli`` is ``belay``."""

from engine.cli import main

if __name__ == "__main__":
    main(prog_name="belay")
