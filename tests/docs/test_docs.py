"""The documentation: links lead somewhere, programs compile, drawn pages are current, names that it uses exist."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from holdfast.core.faults import (
    ACTION_MISMATCH,
    ACTION_NOT_SUPPORTED,
    MUST_UNDERSTAND,
    ONLY_ANONYMOUS_ADDRESS_SUPPORTED,
    VERSION_MISMATCH,
)

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@cache
def generator() -> ModuleType:
    sys.path.insert(0, str(DOCS))  # as for a script there
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def drawn_pages() -> list[Path]:
    pages: list[Path] = generator().pages()
    return pages


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def blocks(page: Path, *languages: str) -> list[str]:
    found = FENCE.finditer(page.read_text(encoding="utf-8"))
    return [
        "\n".join(line.removeprefix(match[1]) for line in match[3].splitlines())
        for match in found
        if match[2] in languages
    ]


@cache
def anchors(page: Path) -> set[str]:
    """The anchors that headings make, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+?) *$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Files and anchors that a page links to; addresses elsewhere are not looked up."""
    for target in LINK.findall(prose(page)):
        if "://" not in target and not target.startswith("mailto:"):
            path, _, anchor = target.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


def test_the_pages_are_where_these_tests_look() -> None:
    assert DOCS / "index.md" in PAGES
    assert ROOT / "README.md" in PAGES


@every_page
def test_every_link_leads_to_a_file_and_a_heading_in_it(page: Path) -> None:
    for path, anchor in links(page):
        assert path.exists(), f"{page.name} links to {path}"
        assert not anchor or anchor in anchors(path), f"{page.name} links to #{anchor} of {path.name}"


def test_every_page_can_be_reached_from_the_front_page() -> None:
    reached: set[Path] = set()
    waiting = [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            waiting.extend(path for path, _ in links(page) if path.is_relative_to(DOCS))
    assert set(DOCS.rglob("*.md")) - reached == set()


@every_page
def test_every_python_program_compiles(page: Path) -> None:
    for number, program in enumerate(blocks(page, "python"), 1):
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        compile(program, f"{page.name}, program {number}", "exec", flags=flags)


@every_page
def test_every_name_that_a_program_takes_from_holdfast_is_there(page: Path) -> None:
    import holdfast

    for program in blocks(page, "python"):
        for node in ast.walk(ast.parse(program)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "holdfast":
                assert node.attr in holdfast.__all__, f"{page.name} uses holdfast.{node.attr}"
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("holdfast."):
                assert importlib.util.find_spec(node.module or "") is not None, f"{page.name}: {node.module}"


def mistakes_in(file: Path, read: Callable[[Path], Any]) -> list[str]:
    """What is wrong with a file that configures something, but for certificates and the like, which are not here."""
    from holdfast.exceptions import ConfigurationMistakes

    try:
        read(file)
    except ConfigurationMistakes as error:
        return [one.what for one in error.mistakes if "cannot be read" not in one.what]
    return []


@every_page
def test_every_configuration_of_a_broker_or_a_pipeline_can_be_read(page: Path, tmp_path: Path) -> None:
    from holdfast.broker.config_file import read_config
    from holdfast.pipeline.mediation.definition.file import read_pipeline

    shutil.copytree(ROOT / "examples" / "mediation", tmp_path, dirs_exist_ok=True)
    for text in blocks(page, "toml"):
        (tmp_path / "told.toml").write_text(text)
        assert mistakes_in(tmp_path / "told.toml", read_pipeline if "[sources." in text else read_config) == []


@every_page
def test_every_command_and_option_is_there(page: Path) -> None:
    main = importlib.import_module("holdfast.cli.main")
    text = "\n".join(blocks(page, "bash", "text")) + "\n" + "\n".join(re.findall(r"`(holdfast [^`]+)`", prose(page)))
    text = text.replace("\\\n", " ")
    for line in text.splitlines():
        match = re.search(r"(?:^|[|$/] ?|-f \")holdfast ([a-z][\w-]*)(.*)", line.strip())
        if match is None:
            continue
        assert match[1] in main.COMMANDS, f"{page.name}: {line}"
        if importlib.util.find_spec(main.COMMANDS[match[1]][0]) is None:
            continue
        module, attribute, _ = main.COMMANDS[match[1]]
        command = getattr(importlib.import_module(module), attribute)
        if isinstance(command, click.Group):
            # `holdfast dead-letters list|show` names several, `holdfast dead-letters …` and `holdfast broker --…` none.
            first = (match[2].split() or [""])[0]
            parts = re.findall(r"[a-z]+", first) if not first.startswith("--") else []
            if hasattr(command, "default") and not set(parts) & set(command.commands):
                parts = [command.default]  # `holdfast queues inbox` means `holdfast queues show inbox`
            assert set(parts) <= set(command.commands), f"{page.name}: {line}"
            inner = [one for part in parts for one in command.commands[part].params]
            command = click.Command("all", params=[*command.params, *inner])
        known = {name for option in command.params for name in option.opts} | {"--help"}
        used = re.findall(r"(?<= )--[a-z][\w-]*", match[2].partition("#")[0])
        assert set(used) <= known, f"{page.name}: {line}"


@pytest.mark.parametrize("page", drawn_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_drawn_page_is_current(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == generator().draw(page), "run: python docs/generate.py"


def test_every_test_that_the_documentation_names_is_there() -> None:
    named = [(page, *found) for page in PAGES for found in TEST.findall(page.read_text(encoding="utf-8"))]
    assert any(page.name == "conformance.md" for page, _, _ in named)
    for page, file, name in named:
        assert (ROOT / file).is_file(), f"{page.name} names {file}"
        text = (ROOT / file).read_text(encoding="utf-8")
        assert not name or re.search(rf"def {name}\b|class {name}\b|^{name} = ", text, re.MULTILINE), f"{file}::{name}"


@cache
def rules() -> list[tuple[str, str, list[str], str]]:
    """Of the conformance page: rule, clauses, where it is coded, where it is tested."""
    text = (DOCS / "reference" / "conformance.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert all(len(row) == 6 for row in rows), "a cell holds a bar, or python docs/generate.py has not run"
    found = [row for row in rows if row[0] not in ("rule", "---")]
    return [(rule, clauses, re.findall(r"`([^`]+)`", coded), tested) for rule, clauses, _, _, coded, tested in found]


CITED = re.compile(
    r"(WS-RM(?: 1\.0| Policy 1\.2)?|SOAP 1\.[12](?: part 1)?|WS-Addressing 200[45]/08(?: core)?|"
    r"WS-Policy(?:Attachment)? 1\.5|WS-SecureConversation 1\.3|WS-MakeConnection|XOP 1\.0|RFC \d+|"
    r"SOAP Message Security 1\.1|X\.509 Certificate Token Profile 1\.1|SecurityPolicy 1\.2|"
    r"XML Encryption 1\.1|SAML Token Profile 1\.1|SAML Core 2\.0|UsernameToken Profile 1\.1),? (?:sections? )?"
    r"((?:appendix [A-Z]|\d[\d.]*)(?:(?:, | and )\d\.[\d.]*\d)*)"
)


def clauses_in(text: str) -> set[tuple[str, str]]:
    """Every clause that a text cites, with its specification: ``WS-RM 3.5, 3.6`` are two."""
    joined = re.sub(r"\s+(?:# )?", " ", text)
    return {
        (specification, clause.rstrip("."))
        for specification, clauses in CITED.findall(joined)
        for clause in re.split(r", | and ", clauses)
    }


@cache
def code_at(place: str) -> str:
    """The source of ``file.py``, or of ``file.py::Class.method`` with its comments."""
    file, _, name = place.partition("::")
    text = (ROOT / "src" / "holdfast" / file).read_text(encoding="utf-8")
    node: ast.AST = ast.parse(text)
    for part in filter(None, name.split(".")):
        inner = [one for one in getattr(node, "body", []) if getattr(one, "name", None) == part]
        assert inner, f"{place} is not there"
        node = inner[0]
    return text if not name else ast.get_source_segment(text, node) or ""


def test_a_clause_is_found_however_it_is_cited() -> None:
    assert clauses_in("(WS-RM 3.5, 3.6). In 1.0, a") == {("WS-RM", "3.5"), ("WS-RM", "3.6")}
    assert clauses_in("# WS-RM section 3.9\n    # and") == {("WS-RM", "3.9")}
    assert clauses_in("in WS-RM 1.0 4: x") == {("WS-RM 1.0", "4")}
    assert clauses_in("the tables (WS-RM\n    # appendix D)") == {("WS-RM", "appendix D")}
    assert clauses_in("SOAP 1.2 part 1, 5.4.8.") == {("SOAP 1.2 part 1", "5.4.8")}
    assert clauses_in("3.4, and WS-RM") == set()


def test_every_rule_says_where_it_is_coded_and_tested() -> None:
    assert len(rules()) > 80
    for rule, clauses, coded, tested in rules():
        assert coded, rule
        assert "::test_" in tested, rule
        assert (clauses == "–") is not bool(clauses_in(clauses)), f"{rule}: {clauses} is no clause"


def test_the_code_of_every_rule_is_there_and_cites_the_clauses_of_its_row() -> None:
    for rule, clauses, coded, _ in rules():
        said = clauses_in(clauses)
        cited = {place: clauses_in(code_at(place)) for place in coded}
        missing = said.difference(*cited.values())
        assert not missing, f"{rule}: nobody of {coded} cites {missing}"
        for place in coded:
            assert not said or said & cited[place], f"{rule}: {place} cites none of {clauses}"


def test_every_error_that_the_faults_page_names_has_a_class() -> None:
    exceptions = importlib.import_module("holdfast.exceptions")
    text = (DOCS / "reference" / "faults.md").read_text(encoding="utf-8")
    for code in exceptions.SEQUENCE_FAULTS:
        assert f"| `{code}` |" in text, code
    raised = {
        ACTION_MISMATCH,
        ACTION_NOT_SUPPORTED,
        MUST_UNDERSTAND,
        ONLY_ANONYMOUS_ADDRESS_SUPPORTED,
        VERSION_MISMATCH,
    }
    assert not [code for code in raised if f"`{code}`" not in text]


def test_the_settings_page_has_every_settings_class_that_is_public() -> None:
    import holdfast

    text = (DOCS / "reference" / "configuration.md").read_text(encoding="utf-8")
    for name in holdfast.__all__:
        if name.endswith("Policy") and name != "Policy":  # its settings are those of SourcePolicy
            assert f"## {name}" in text, name


def test_no_page_knows_the_machine_it_was_written_on() -> None:
    for page in PAGES:
        found = re.findall(r"/(?:home|root|work|Users)/\S*", page.read_text(encoding="utf-8"))
        assert not found, f"{page.name}: {found}"


@cache
def members() -> dict[str, set[str]]:
    """Every class of the source with the names of its methods and fields, and of those of its bases."""
    found: dict[str, set[str]] = {}
    bases: dict[str, list[str]] = {}
    for path in (ROOT / "src" / "holdfast").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                names = {one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
                targets: list[ast.expr] = []
                for one in ast.walk(node):
                    targets += one.targets if isinstance(one, ast.Assign) else []
                    targets += [one.target] if isinstance(one, ast.AnnAssign) else []
                names |= {ast.unparse(target).rpartition(".")[2] for target in targets}
                found.setdefault(node.name, set()).update(names)
                bases.setdefault(node.name, []).extend(ast.unparse(base).partition("[")[0] for base in node.bases)

    def all_of(name: str) -> set[str]:
        return found.get(name, set()).union(*(all_of(base) for base in bases.get(name, ()) if base != name))

    return {name: all_of(name) for name in found}


@every_page
def test_every_method_and_setting_that_is_named_with_its_class_is_there(page: Path) -> None:
    for name in re.findall(r"`([^`\n]+)`", prose(page)):
        match = re.match(r"(?:[a-z_]+\.)*([A-Z]\w+)\.(\w+)", name)
        if match is not None and match[1] in members():
            assert match[2] in members()[match[1]], f"{page.name} names {name}"


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    board = (DOCS / "reference" / "grafana.json").read_text(encoding="utf-8")
    page = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
    drawn = set(re.findall(r"^\| `(holdfast_\w+)` \|", page, re.MULTILINE))
    asked = {name.removesuffix("_bucket") for name in re.findall(r"holdfast_\w+", board)}
    assert len(asked) > 10
    assert asked <= drawn
    panels = json.loads(board)["panels"]
    assert len({one["id"] for one in panels}) == len(panels)
