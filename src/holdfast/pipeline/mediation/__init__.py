"""Mediation: reliable messages in, DataFrames between, reliable messages out, each exactly once.

This package owns a pipeline's file and its execution. Each step in the file is a function here, for notebooks and
for pipelines in Python. It knows no command. Open ``definition.file`` first, then ``execution.run``.
"""

from holdfast.pipeline.mediation.definition.file import Pipeline, read_pipeline
from holdfast.pipeline.mediation.execution.batches import MediatedBatch
from holdfast.pipeline.mediation.execution.run import Mediation, run
from holdfast.pipeline.mediation.execution.sinks import read_dead_letters
from holdfast.pipeline.mediation.transformations.inference import infer_schema
from holdfast.pipeline.mediation.transformations.parsing import parse_json, parse_xml, validate
from holdfast.pipeline.mediation.transformations.problems import split
from holdfast.pipeline.mediation.transformations.routing import Route, route
from holdfast.pipeline.mediation.transformations.writing import to_xml
from holdfast.pipeline.mediation.transformations.xsd import XSD

__all__ = [
    "XSD",
    "MediatedBatch",
    "Mediation",
    "Pipeline",
    "Route",
    "infer_schema",
    "parse_json",
    "parse_xml",
    "read_dead_letters",
    "read_pipeline",
    "route",
    "run",
    "split",
    "to_xml",
    "validate",
]
