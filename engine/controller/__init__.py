"""The loop: from a trigger to writes and status. ``loop.py`` is the prose, the other files are its nouns."""
