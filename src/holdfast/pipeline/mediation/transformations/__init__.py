"""The functions of a mediation: columns of bodies, checks, XML of columns, routes.

This room owns the columns that a step makes. It knows no file of a pipeline and no server. Open ``parsing`` first;
``problems`` says what marks a bad row.
"""
