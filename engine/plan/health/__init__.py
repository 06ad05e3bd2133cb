"""Faults become chip and node states; isolations, releases and resets follow."""
