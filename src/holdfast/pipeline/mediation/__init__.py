"""Mediation: reliable messages in, DataFrames between, reliable messages out, each exactly once.

What a file of ``holdfast pipeline run`` says in words are functions here, for notebooks and for pipelines in Python.
"""

from holdfast.pipeline.mediation.inference import infer_schema
from holdfast.pipeline.mediation.parsing import parse_xml, validate
from holdfast.pipeline.mediation.problems import split
from holdfast.pipeline.mediation.writing import to_xml
from holdfast.pipeline.mediation.xsd import XSD

__all__ = ["XSD", "infer_schema", "parse_xml", "split", "to_xml", "validate"]
