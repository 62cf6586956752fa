"""Trials of policies, thousands of simulations spread over Spark, and the report of them.

This room owns the grid of trials. It knows no server: each trial runs in the simulator. Open ``trials`` first.
"""
