"""What Belay serves over HTTP: the webhook, metrics, health, and a page for people."""
