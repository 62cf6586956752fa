"""A report as one HTML file with headings, sentences, tables and plots, without external resources.

The content may come from peers, so all of it is escaped. Needs the extra ``report``.
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
"""Colors of the lines in a plot, in order."""

SHOWN = 20
"""Rows of a table that are visible at first; a search field and a button show the others."""

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{ title }}</title><style>
:root { color-scheme: light dark; --text: #222; --page: #fff; --faint: #555; --line: #ddd; --rule: #999;
  --link: #2a6f97; --row: #fff3c4; --good: #eef6ea; --bad: #fbeceb }
@media (prefers-color-scheme: dark) { :root { --text: #ddd; --page: #1b1b1d; --faint: #aaa; --line: #3a3a3e;
  --rule: #777; --link: #7fbfe3; --row: #4a4220; --good: #23311d; --bad: #42211f }
  figure svg { filter: invert(.88) hue-rotate(180deg) } }
html { background: var(--page) }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: var(--text) }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2.2rem } h3 { font-size: 1rem; margin-bottom: 0 }
.wide { overflow-x: auto; margin: .6rem 0 } table { border-collapse: collapse; width: 100%; font-size: 13px }
td, th { padding: .25rem .6rem; text-align: left; vertical-align: top } th { border-bottom: 2px solid var(--rule) }
td { border-bottom: 1px solid var(--line); overflow-wrap: break-word } tr:target { background: var(--row) }
.number { text-align: right; white-space: nowrap }
.time, .short { white-space: nowrap } .text { min-width: 12rem }
.id { font: 12px ui-monospace, monospace; min-width: 9rem; overflow-wrap: anywhere }
nav { margin: .4rem 0 } input { font: inherit; padding: .1rem .4rem; width: 16rem } button { font: inherit }
figure { margin: 1rem 0 } figcaption, output { color: var(--faint) } svg { max-width: 100%; height: auto }
a { color: var(--link) }
.verdict { padding: .5rem .8rem; background: var(--good); border-left: 4px solid #6a994e }
.bad { padding: .5rem .8rem; background: var(--bad); border-left: 4px solid #b0413e }
</style></head><body><h1>{{ title }}</h1>
{% for part in parts %}
{%- if part.heading is defined %}<h{{ part.level }}>{{ part.heading }}</h{{ part.level }}>
{% elif part.text is defined %}<p{% if part.is_bad %} class="bad"{% elif part.is_verdict %} class="verdict"{% endif %}>
{{- part.text }}</p>
{% elif part.svg is defined %}<figure>{{ part.svg | safe }}<figcaption>{{ part.caption }}</figcaption></figure>
{% elif not part.rows %}<p>None.</p>
{% else %}{% if part.rows | length > shown %}
<nav><input type="search" placeholder="Search {{ part.rows | length }} rows" aria-label="Search">
<output>{{ shown }} rows are shown.</output>
<button type="button">Show all {{ part.rows | length }}</button></nav>
{% endif %}<div class="wide"><table><thead><tr>{% for name, kind in part.shown_columns() %}<th
{%- if kind == "number" %} class="number"{% endif %}>{{ name }}</th>{% endfor %}</tr></thead><tbody>
{% for id, cells in part.shown_rows() %}<tr{% if id %} id="{{ id }}"{% endif %}
{%- if loop.index > shown %} hidden{% endif %}>
{%- for cell, kind in cells %}<td{% if kind %} class="{{ kind }}"{% endif %}>
{%- if cell.target is defined %}<a href="#{{ cell.target }}">{{ cell.text }}</a>
{%- else %}{{ told(cell) }}{% endif %}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>{% if part.left_out %}<p>{{ told(part.left_out) }} more rows are not in this page.</p>
{% endif %}{% endif %}{% endfor %}{% if is_searched %}<script>
for (const nav of document.querySelectorAll("nav")) {
  const rows = [...nav.nextElementSibling.querySelectorAll("tbody tr")], [field, count, all] = nav.children;
  const show = most => { let left = most; for (const row of rows)
    row.hidden = !row.textContent.toLowerCase().includes(field.value.toLowerCase()) || left-- <= 0;
    const found = rows.filter(row => !row.hidden).length;
    count.textContent = (found || "No") + (found == 1 ? " row is shown." : " rows are shown."); };
  field.oninput = () => show(field.value ? rows.length : {{ shown }});
  all.onclick = () => { field.value = ""; show(rows.length); all.remove(); };
}
const reveal = () => { const row = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (row) { row.hidden = false; row.scrollIntoView(); } };
addEventListener("hashchange", reveal); reveal();
addEventListener("click", event => event.target.closest("td a") && setTimeout(reveal));
</script>{% endif %}</body></html>
"""

_OUTSIDE = re.compile(r"\A.*?(?=<svg)", re.S)


@dataclass(frozen=True, slots=True)
class Heading:
    """The heading of a section; of a subsection if ``level`` is 3."""

    heading: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph; ``is_bad``: it reports a problem; ``is_verdict``: it states that there is no problem."""

    text: str
    is_bad: bool = False
    is_verdict: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """A cell with a link to a row of the page; ``target`` is the row's id."""

    text: str
    target: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under their columns. A column without any value is omitted.

    Args:
        rows: The cells of each: text, numbers, :class:`Link`, or None for an empty cell.
        left_out: Number of further rows that the page omits.
        ids: Ids of the rows, for links to them; "" or an empty sequence: no links.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    left_out: int = 0
    ids: Sequence[str] = ()

    def shown_columns(self) -> list[tuple[str, str]]:
        """Return the names of the columns, and the kinds of their values as CSS classes."""
        return [(self.columns[at], kind) for at, kind in self._kinds()]

    def shown_rows(self) -> Iterator[tuple[str, list[tuple[object, str]]]]:
        """Yield the id of each row, and its cells with their kinds."""
        kinds = self._kinds()
        for number, row in enumerate(self.rows):
            id = self.ids[number] if number < len(self.ids) else ""
            yield id, [(row[at], kind if kind != "number" or _is_number(row[at]) else "") for at, kind in kinds]

    def _kinds(self) -> list[tuple[int, str]]:
        found = []
        for at in range(len(self.columns)):
            values = [row[at] for row in self.rows if row[at] is not None and row[at] != ""]
            if values:
                found.append((at, _kind_of(values)))
        return found


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _kind_of(values: Sequence[object]) -> str:
    """Return how to lay out a column: numbers to the right, times in one line, long names in a narrow font."""
    if all(map(_is_number, values)):
        return "number"
    texts = [value.text if isinstance(value, Link) else str(value) for value in values]
    if all(map(_TIME.fullmatch, texts)):
        return "time"
    longest = max(map(len, texts))
    if longest > _LONG:
        return "id" if all(" " not in text for text in texts) else "text"
    return "short" if longest <= _SHORT else ""


_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?")
_LONG = 24
"""Characters: a longer name may break anywhere."""
_SHORT = 15
"""Characters: text up to this length stays in one line."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure as SVG, see :func:`drawn`."""

    svg: str
    caption: str = ""


Part = Heading | Text | Table | Plot


def check_installed() -> None:
    """Check that a report can be written, before anything is computed for it.

    Raises:
        ConfigurationError: A package that draws or writes it is not installed.
    """
    missing = [name for name in ("matplotlib", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"an HTML report needs {' and '.join(missing)}",
            remedy="pip install 'holdfast[report]', or omit --html.",
        )


def check_writable(file: Path) -> None:
    """Check that the report file is writable, before anything is computed for it; create its directory.

    Raises:
        ConfigurationError: It is not writable.
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
            remedy="Name a file in a directory that this user may write to",
        ) from error


def drawn(figure: Figure, caption: str = "") -> Plot:
    """Return a matplotlib figure as part of a page."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return Plot(_OUTSIDE.sub("", file.getvalue(), count=1), caption)


def new_figure(rows: int = 1, columns: int = 1, *, width: float = 9, height: float = 3.2) -> Figure:
    """Return a figure with ``rows`` times ``columns`` axes in ``figure.axes``, without global state or a window.

    Args:
        rows, columns: Of axes.
        width, height: Of the whole figure, in inches.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.subplots(rows, columns, squeeze=False)
    return figure


def render(title: str, parts: Sequence[Part]) -> str:
    """Return the page.

    Raises:
        ConfigurationError: A package that writes it is not installed.
    """
    check_installed()
    from jinja2 import Environment

    page = Environment(autoescape=True, trim_blocks=True).from_string(_PAGE)
    is_searched = any(isinstance(part, Table) and (len(part.rows) > SHOWN or part.ids) for part in parts)
    return page.render(title=title, parts=parts, told=_told, shown=SHOWN, is_searched=is_searched)


def _told(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:,.4g}" if abs(cell) < 1000 else f"{cell:,.0f}"
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else "" if cell is None else str(cell)
