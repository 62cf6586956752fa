"""A report as one HTML file: headings, sentences, tables and plots, nothing fetched from anywhere.

What is shown may come from peers, so all of it is escaped. Needs the extra ``report``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.exceptions import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#2a6f97", "#b0413e", "#6a994e", "#bc6c25", "#7b5ea7", "#468faf", "#8d99ae", "#3d405b")
"""Of lines in a plot, in their order."""

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title><style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0; font-size: 13px } td, th { padding: .2rem .7rem; text-align: left }
th { border-bottom: 2px solid #999 } td { border-bottom: 1px solid #ddd } .number { text-align: right }
figure { margin: 1rem 0 } figcaption { color: #555 } svg { max-width: 100%; height: auto } .bad { color: #b0413e }
</style></head><body><h1>{{ title }}</h1>
{% for part in parts %}
{%- if part.heading is defined %}<h2>{{ part.heading }}</h2>
{% elif part.text is defined %}<p{% if part.is_bad %} class="bad"{% endif %}>{{ part.text }}</p>
{% elif part.svg is defined %}<figure>{{ part.svg | safe }}<figcaption>{{ part.caption }}</figcaption></figure>
{% elif not part.rows %}<p>None.</p>
{% else %}<table><tr>{% for name in part.columns %}<th>{{ name }}</th>{% endfor %}</tr>
{% for row in part.rows %}<tr>{% for cell in row %}<td{% if cell is number %} class="number"{% endif %}>
{{- told(cell) }}</td>{% endfor %}</tr>
{% endfor %}</table>{% if part.left_out %}<p>{{ part.left_out }} more rows are not shown.</p>{% endif %}
{% endif %}{% endfor %}</body></html>
"""

_OUTSIDE = re.compile(r"\A.*?(?=<svg)", re.S)


@dataclass(frozen=True, slots=True)
class Heading:
    """Begins a section."""

    heading: str


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph; ``is_bad``: one that tells of something wrong."""

    text: str
    is_bad: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under their columns; ``left_out``: how many more there are."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure as SVG, see :func:`drawn`."""

    svg: str
    caption: str = ""


Part = Heading | Text | Table | Plot


def check_installed() -> None:
    """See that a report can be written, before anything is computed for it.

    Raises:
        ConfigurationError: What draws and writes it is not installed.
    """
    missing = [name for name in ("matplotlib", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"an HTML report needs {' and '.join(missing)}",
            remedy="pip install 'holdfast[report]', or leave out --html.",
        )


def check_writable(file: Path) -> None:
    """See that a report can be written to a file, before anything is computed for it; its directory is made.

    Raises:
        ConfigurationError: It cannot.
    """
    with _in_a_sentence(file):
        is_new = not file.exists()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.open("ab").close()
        if is_new:
            file.unlink()


def write_report(file: Path, text: str) -> None:
    """Write a report.

    Raises:
        ConfigurationError: It cannot be written.
    """
    with _in_a_sentence(file):
        file.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def _in_a_sentence(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"the report cannot be written to {file}: {error.strerror}",
            remedy="name a file in a directory where this user may write",
        ) from error


def drawn(figure: Figure, caption: str = "") -> Plot:
    """A figure of matplotlib's as part of a page."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return Plot(_OUTSIDE.sub("", file.getvalue(), count=1), caption)


def new_figure(rows: int = 1, columns: int = 1, *, width: float = 9, height: float = 3.2) -> Figure:
    """A figure with ``rows`` times ``columns`` axes, in ``figure.axes``; no global state, no window.

    Args:
        rows, columns: Of axes.
        width, height: Of all of it, inches.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.subplots(rows, columns, squeeze=False)
    return figure


def render(title: str, parts: Sequence[Part]) -> str:
    """The page.

    Raises:
        ConfigurationError: What writes it is not installed.
    """
    check_installed()
    from jinja2 import Environment

    page = Environment(autoescape=True, trim_blocks=True).from_string(_PAGE)
    return page.render(title=title, parts=parts, told=_told)


def _told(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:,.4g}" if abs(cell) < 1000 else f"{cell:,.0f}"
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else "" if cell is None else str(cell)
