"""The functions of a mediation: columns from bodies, checks, XML from columns, routes.

This package owns the columns of a step. It knows no file of a pipeline and no server. Open ``parsing`` first;
``problems`` defines the mark of a bad row.
"""
