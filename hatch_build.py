"""What a package index shows of this project: its README without the repository around it, and where to find that.

Read by hatchling when the package is built. Links to files of the repository lead nowhere on an index. Once the project
has a public place, its address goes into ``[tool.hatch.metadata.hooks.custom]`` of pyproject.toml, and the links become
addresses there and the project gets its URLs; until then each link becomes the file's name, in the source distribution.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

try:
    from hatchling.metadata.plugin.interface import MetadataHookInterface
except ModuleNotFoundError:  # the tests of the functions below
    MetadataHookInterface = object

_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_WHERE = "\nThe files that are named here are in the source distribution.\n"


def readme_for_index(text: str, files: str) -> str:
    """A README whose links to files do not need the repository around it.

    Args:
        text: The README, Markdown.
        files: The address of a file, with ``{path}`` in it; "" if the project has no public place.
    """
    found = 0

    def instead(match: re.Match[str]) -> str:
        nonlocal found
        words, target = match[1], match[2]
        if "://" in target or target.startswith(("#", "mailto:")):
            return match[0]
        found += 1
        path, hash_sign, anchor = target.partition("#")
        if files:
            return f"[{words}]({files.format(path=path)}{hash_sign}{anchor})"
        return words if words == path else f"{words} (`{path}`)"

    parts = _FENCE.split(text)
    parts[::2] = [_LINK.sub(instead, part) for part in parts[::2]]
    return "".join(parts) + (_WHERE if found and not files else "")


def urls_of(repository: str, files: str) -> dict[str, str]:
    """The project's URLs, by the names that indexes know; none without a public place."""
    if not repository:
        return {}
    pages = {"Documentation": "docs/index.md", "Changelog": "CHANGELOG.md", "Security": "SECURITY.md"}
    return {"Repository": repository, **{name: files.format(path=path) for name, path in pages.items()}}


class IndexPage(MetadataHookInterface):  # type: ignore[misc]
    """Sets ``readme`` and ``urls``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling with the metadata of pyproject.toml."""
        repository, files = self.config.get("repository", ""), self.config.get("files", "")
        if bool(repository) != ("{path}" in files):
            raise ValueError("pyproject.toml: give both repository and files, with {path} in it, or neither")
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": readme_for_index(readme, files)}
        metadata["urls"] = urls_of(repository, files)
