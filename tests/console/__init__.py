"""The console in a real browser: Debian's chromium, driven by playwright, against the console's own routes.

`python -m tests.console` (`make console-shots`) writes the pictures of docs/console.
"""
