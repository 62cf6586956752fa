"""Docstrings of the code as Markdown."""

from __future__ import annotations

import re

Section = dict[str, list[tuple[str, str]]]


def as_markdown(text: str) -> str:
    """Convert a docstring's roles and double backticks to Markdown."""
    text = re.sub(r":\w+:`~[\w.]*\.(\w+)`", r"`\1`", text)
    text = re.sub(r":\w+:`([\w.]+)`", r"`\1`", text)
    return text.replace("``", "`")


def split_docstring(text: str) -> tuple[list[str], Section]:
    """Return the paragraphs, each on one line, and the entries of Args, Attributes, Returns and Raises."""
    paragraphs: list[str] = []
    sections: Section = {}
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        match = re.fullmatch(r"(Args|Attributes|Returns|Raises):", lines[0].strip())
        if match is None:
            paragraphs.append(" ".join(line.strip() for line in lines))
        else:
            # What is returned has no name: its lines are sentences.
            is_text = match[1] == "Returns"
            told = as_markdown(" ".join(line.strip() for line in lines[1:])) if is_text else ""
            sections[match[1]] = [("", told)] if is_text else _entries(lines[1:])
    return [as_markdown(paragraph) for paragraph in paragraphs], sections


def _entries(lines: list[str]) -> list[tuple[str, str]]:
    indent = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    entries: list[tuple[str, str]] = []
    for line in lines:
        if len(line) - len(line.lstrip()) > indent and entries:
            name, told = entries[-1]
            entries[-1] = (name, f"{told} {line.strip()}")
            continue
        name, colon, told = line.strip().partition(": ")
        is_name = colon and re.fullmatch(r"[\w, ]+", name)
        if line.strip().endswith(":") and re.fullmatch(r"[\w, ]+:", line.strip()):
            entries.append((line.strip()[:-1], ""))
        else:
            entries.append((name, told) if is_name else ("", line.strip()))
    return [(name, as_markdown(told.strip())) for name, told in entries]


def render_docstring(text: str) -> str:
    """Convert a docstring to Markdown."""
    paragraphs, sections = split_docstring(text)
    parts = ["\n\n".join(paragraphs)]
    for title, entries in sections.items():
        if title == "Returns":
            parts.append(f"*Returns*\n\n{entries[0][1]}")
            continue
        lines = [f"*{title}*", ""]
        for name, told in entries:
            names = ", ".join(f"`{one.strip()}`" for one in name.split(","))
            lines.append(f"- {names}: {told}" if name else f"- {told}")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)
