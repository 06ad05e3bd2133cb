"""Notifications: what happens is reported by chat, e-mail and Alertmanager."""
