"""Trials of policies, thousands of simulations distributed over Spark, and their report.

This package contains the grid of trials. It uses no server: each trial runs in the simulator. Open ``trials`` first.
"""
