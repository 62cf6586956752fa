"""What a package index shows: no link of the README leads nowhere there, and no address is made up."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import holdfast

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FILES = "https://host.example/holdfast/blob/main/{path}"


@cache
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


def test_without_a_public_place_no_link_is_left_and_each_file_is_named() -> None:
    text = build().readme_for_index(README, "")
    assert any("://" not in link for link in links(README)), "there is something to do"
    assert not [link for link in links(text) if "://" not in link]
    for link in links(README):
        path = link.partition("#")[0]
        assert "://" in link or path in text
        assert "://" in link or (ROOT / path).exists()
    assert "in the source distribution" in text


def test_with_a_public_place_every_link_is_an_address_there() -> None:
    text = build().readme_for_index(README, FILES)
    assert len(links(text)) == len(links(README))
    assert all("://" in link for link in links(text))
    assert "https://host.example/holdfast/blob/main/docs/index.md#how-to" in links(text)
    urls = build().urls_of("https://host.example/holdfast", FILES)
    assert urls["Documentation"] == "https://host.example/holdfast/blob/main/docs/index.md"
    assert all((ROOT / url.partition("/main/")[2]).exists() for url in urls.values() if "/main/" in url)


def test_programs_in_the_readme_stay_as_they_are() -> None:
    program = "```python\nhandlers[name](message)\n```\n[a](docs/a.md) and [b](https://b.example/) and [c](#c)\n"
    text = build().readme_for_index(program, "")
    assert text.startswith(
        "```python\nhandlers[name](message)\n```\na (`docs/a.md`) and [b](https://b.example/) and [c](#c)\n"
    )


def test_no_address_is_made_up() -> None:
    assert build().urls_of("", "") == {}
    place = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["custom"]
    assert bool(place["repository"]) == ("{path}" in place["files"])


def test_the_version_is_said_in_one_place() -> None:
    assert "version" in PYPROJECT["project"]["dynamic"]
    assert PYPROJECT["tool"]["hatch"]["version"]["path"] == "src/holdfast/__init__.py"
    assert f'__version__ = "{holdfast.__version__}"' in (ROOT / "src/holdfast/__init__.py").read_text(encoding="utf-8")


# --- what is built ------------------------------------------------------------------------------------------------


def built(target: str, directory: Path) -> set[str]:
    """The names in what ``pip install`` or an index gets."""
    pytest.importorskip("hatchling", reason="it comes with the extra dev")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(directory)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (archive,) = directory.iterdir()
    if target == "wheel":
        return set(zipfile.ZipFile(archive).namelist())
    with tarfile.open(archive) as tar:
        return {name.partition("/")[2] for name in tar.getnames()}


def test_a_wheel_holds_the_package_and_no_demo(tmp_path: Path) -> None:
    names = built("wheel", tmp_path)
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"holdfast", "pyspark_holdfast"}
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == sources
    assert "holdfast/testing/pair.py" in names, "what users test with is there"
    assert not [name for name in names if "demo" in name or "flights" in name]


def test_the_source_distribution_has_the_demo_and_what_starts_it(tmp_path: Path) -> None:
    names = built("sdist", tmp_path)
    assert {"demo/__main__.py", "demo/flights.py", "scripts/demo", "scripts/_setup.sh", "pyproject.toml"} <= names


MOST_CALLS = 5_000
"""Calls of our functions while a module is imported; the most are 1,200, of the decorators of settings."""

IMPORTS = """
import importlib, pkgutil, sys
from collections import Counter
import holdfast
calls = Counter()
def count(frame, event, arg):
    if event == "call":
        calls[frame.f_code.co_filename] += 1
sys.setprofile(count)
for _, name, _ in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
    if not name.startswith("holdfast.pipeline") and not name.endswith("__main__"):
        importlib.import_module(name)
sys.setprofile(None)
print("\\n".join(f"{number} {file}" for file, number in calls.items() if file.startswith(holdfast.__path__[0])))
"""


def test_no_module_computes_much_when_it_is_imported() -> None:
    """Each process of a server imports most of them, and so does each command."""
    told = subprocess.run([sys.executable, "-c", IMPORTS], check=True, capture_output=True, text=True).stdout
    found = {file: int(number) for number, _, file in (line.partition(" ") for line in told.splitlines())}
    assert len(found) > 100
    assert {file: number for file, number in found.items() if number > MOST_CALLS} == {}
