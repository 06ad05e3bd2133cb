"""One module per topology family of servers and super pods."""
