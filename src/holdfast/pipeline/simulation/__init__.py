"""Trials of policies, thousands of simulations distributed over Spark, and their report.

This package owns the grid of trials. It knows no server: each trial runs in the simulator. Open ``trials`` first.
"""
