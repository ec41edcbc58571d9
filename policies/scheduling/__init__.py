"""Schedules, which decide which requests run, and the fairness wrapper around any of them."""
