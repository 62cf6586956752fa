"""HTML reports: what they show of long tables and of texts that peers wrote.

Covers pipeline/html_report.py.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from lxml import html

from holdfast.cli.main import cli
from holdfast.exceptions import ConfigurationError, HoldfastError
from holdfast.pipeline.html_report import (
    SHOWN,
    Heading,
    Link,
    Table,
    Text,
    check_installed,
    check_writable,
    drawn,
    new_figure,
    render,
    write_report,
)
from holdfast.pipeline.jobs import audit as audit_job
from holdfast.pipeline.jobs import grid as grid_job
from holdfast.pipeline.jobs import reassemble as reassemble_job

HOSTILE = "<script>alert('x')</script><img src=http://evil.test/>"


def test_what_peers_wrote_is_shown_and_never_run():
    parts = [Heading(HOSTILE), Text(HOSTILE, is_bad=True), Table([HOSTILE], [[HOSTILE], [None]], left_out=3)]
    page = html.document_fromstring(render(HOSTILE, parts))
    assert page.xpath("//script | //img | //link") == []
    assert page.text_content().count(HOSTILE) == 6


def test_a_long_table_shows_its_first_rows_and_has_a_search_for_the_others():
    rows = [[f"name {number}", number] for number in range(SHOWN + 5)]
    page = html.document_fromstring(render("table", [Table(["name", "number"], rows)]))
    assert len(page.xpath("//tbody/tr[not(@hidden)]")) == SHOWN
    assert len(page.xpath("//tbody/tr")) == len(rows)
    assert page.xpath("//input/@placeholder") == [f"Search {len(rows)} rows"]
    assert page.xpath("//nav/output/text()") == [f"{SHOWN} rows are shown."]
    short = html.document_fromstring(render("table", [Table(["name", "number"], rows[:SHOWN])]))
    assert short.xpath("//input | //script") == []


def test_a_cell_leads_to_its_row_also_where_that_is_not_shown_at_first():
    rows = [[f"urn:{number}"] for number in range(SHOWN + 5)]
    ids = [f"sequence-{number}" for number in range(len(rows))]
    parts = [Table(["Sequence"], [[Link(HOSTILE, ids[-1])]]), Table(["Sequence"], rows, ids=ids)]
    page = html.document_fromstring(render("links", parts))
    (link,) = page.xpath("//a")
    assert (link.get("href"), link.text) == (f"#{ids[-1]}", HOSTILE)
    assert page.get_element_by_id(ids[-1]).text_content().strip() == "urn:24"
    (script,) = page.xpath("//script")
    assert "hashchange" in script.text


def test_the_page_follows_the_colours_of_its_reader():
    (style,) = html.document_fromstring(render("colours", [Text("a")])).xpath("//style/text()")
    light, dark = (
        set(re.findall(r"--[a-z]+", part)) for part in style.partition("@media (prefers-color-scheme: dark)")[::2]
    )
    used = set(re.findall(r"var\((--[a-z]+)\)", style))
    assert used == {name for name in light if f"{name}:" in style} == {name for name in dark if f"{name}:" in style}


def test_no_table_is_wider_than_the_page_and_a_column_without_a_value_is_left_out():
    rows = [[1, None, "", "urn:uuid:" + "0123456789" * 9], [2, None, None, "urn:other"]]
    page = html.document_fromstring(render("table", [Table(["number", "nothing", "empty", "Sequence"], rows)]))
    assert page.xpath("//th/text()") == ["number", "Sequence"]
    assert len(page.xpath("//div[@class='wide']/table")) == 1
    assert page.xpath("//td/@class") == ["number", "id"] * 2


def test_a_table_without_rows_is_told_in_a_word():
    page = html.document_fromstring(render("Audit", [Heading("Faults"), Table(["event"], [])]))
    assert page.xpath("//table") == []
    assert page.xpath("string(//p)") == "None."


def test_a_plot_is_in_the_page_itself():
    figure = new_figure(1, 2)
    figure.axes[0].plot([1, 2], [3, 4], label="lost & found")
    figure.axes[0].legend()
    page = html.document_fromstring(render("plots", [drawn(figure, "what it shows")]))
    assert len(page.xpath("//figure/*[local-name()='svg']")) == 1
    assert page.xpath("//figcaption/text()") == ["what it shows"]
    assert page.xpath("//@src | //link/@href") == []


def test_numbers_are_told_as_people_read_them():
    page = html.document_fromstring(render("table", [Table(["a"], [[1234567], [0.123456], [12345.6], [True]])]))
    assert page.xpath("//td/text()") == ["1,234,567", "0.1235", "12,346", "True"]


def test_what_is_missing_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="needs matplotlib and jinja2") as caught:
        check_installed()
    assert "holdfast[report]" in caught.value.remedy


@pytest.mark.parametrize(
    "command",
    [
        ["audit", "HERE", "--html"],
        ["reassemble", "HERE", "--out", "out", "--report"],
        ["simulate", "--grid", "loss=0", "--out", "out", "--html"],
    ],
    ids=lambda command: command[0],
)
def test_a_report_that_cannot_be_written_is_told_before_spark_starts(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def started(*_given: Any, **_settings: Any) -> None:
        pytest.fail("Spark was started")

    for room in (audit_job, grid_job, reassemble_job):
        monkeypatch.setattr(room, "command_session", started)
    (tmp_path / "file").touch()
    words = [str(tmp_path) if word == "HERE" else word for word in command]
    result = CliRunner().invoke(cli, [*words, str(tmp_path / "file" / "page.html")])
    told = result.output + str(result.exception)
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit | HoldfastError)
    assert re.search("the report cannot be written to .*/file/page.html", told)


def test_a_report_makes_its_directory_and_leaves_what_was_there_until_it_is_written(tmp_path: Path):
    file = tmp_path / "reports" / "page.html"
    check_writable(file)
    assert not file.exists()
    write_report(file, "old")
    check_writable(file)
    assert file.read_text() == "old"
