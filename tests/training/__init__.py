"""Tests of what runs inside training containers."""
