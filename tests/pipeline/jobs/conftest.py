"""Shared parts of the tests of the Spark commands."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from holdfast.pipeline.jobs.output import json_option


@pytest.fixture
def as_json() -> Iterator[None]:
    """The test is within a command that has ``--json``."""
    command = json_option(click.Command("job"))
    with command.make_context("job", ["--json"]):
        yield
