"""The launcher and node agent: starts ranks, notices their deaths, replaces them."""
