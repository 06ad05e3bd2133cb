"""The agent of one node: it reports, receives orders, executes and journals them."""
