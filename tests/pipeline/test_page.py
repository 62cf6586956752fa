from __future__ import annotations

import importlib.util

import pytest
from lxml import html

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.page import Heading, Table, Text, check_installed, drawn, new_figure, render

HOSTILE = "<script>alert('x')</script><img src=http://evil.test/>"


def test_what_peers_wrote_is_shown_and_never_run():
    parts = [Heading(HOSTILE), Text(HOSTILE, is_bad=True), Table([HOSTILE], [[HOSTILE], [None]], left_out=3)]
    page = html.document_fromstring(render(HOSTILE, parts))
    assert page.xpath("//script | //img | //link") == []
    assert page.text_content().count(HOSTILE) == 6


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
