"""The house's style, as far as a machine can read it. Ruff, mypy and the import contracts say the rest."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "demo").rglob("*.py")])
LONGEST_FUNCTION = 70
FULLEST_ROOM = 15
"""Files of a room, without its ``__init__``."""
LONGEST_FILE = 600
LONGEST_TEST_NAME = 80
MOST_ARGUMENTS = 10
"""Of a constructor, without ``self``."""


def lines_matching(pattern: str, paths: list[Path]) -> list[str]:
    found = re.compile(pattern)
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if found.search(line)
    ]


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All nodes of a module, itself first. To read all modules takes two seconds, and many tests do."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@pytest.fixture(scope="module", autouse=True)
def _forget_nodes() -> Iterator[None]:
    """Millions of objects would cost each collection of garbage of the tests that follow."""
    yield
    nodes.cache_clear()


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from ``def`` to the end, without the docstring: explaining more must cost nothing."""
    first = function.body[0]
    docstring = 0
    if ast.get_docstring(function, clean=False) is not None:
        docstring = (first.end_lineno or first.lineno) - first.lineno + 1
    return (function.end_lineno or function.lineno) - function.lineno + 1 - docstring


def test_the_sources_are_where_these_tests_look() -> None:
    assert ROOT / "src" / "holdfast" / "exceptions.py" in SOURCES


def test_nobody_touches_an_open_batch_but_the_group_commit_and_the_queues() -> None:
    owners = ("core/commit.py", "core/queues/queue_records.py")
    others = [path for path in SOURCES if not path.as_posix().endswith(owners)]
    touched = lines_matching(r"\bcommit\.batch\b", others)
    assert not touched, "\n".join(touched)


def test_the_group_commit_knows_no_queues_and_the_queues_no_sequences() -> None:
    """What the fields of a batch are called, where they are written: Sequences in one room, all else in the other."""
    core = ROOT / "src" / "holdfast" / "core"
    of_queues = r"\.(queues|cursors|trims|deletes|appends|releases|holds|drops)\b"
    strays = lines_matching(r"batch" + of_queues, [core / "commit.py"])
    strays += lines_matching(r"batch\.sequences\b", [core / "queues" / "queue_records.py"])
    # The simulation's ledger and the stores read batches that were taken; in the core nobody else has one in his hands.
    rooms = [path for path in core.rglob("*.py") if path.name not in ("commit.py", "queue_records.py", "records.py")]
    strays += lines_matching(r"\bbatch" + of_queues, rooms)
    assert not strays, "\n".join(strays)


def test_endpoints_read_and_write_envelopes_in_one_place_only() -> None:
    """What is done with every envelope is done there: no message gets past it."""
    places = {"decode": {"decoder.py"}, "encode": {"envelopes.py"}, "Decoder": {"envelopes.py"}}
    past = {
        "holdfast.wire.decoding.envelopes",
        "holdfast.wire.encoding.envelopes",
        "holdfast.wire.decoding.forms",
        "holdfast.wire.decoding.fast",
    }
    found: dict[str, set[str]] = {name: set() for name in places}
    for path in [path for path in SOURCES if "endpoint" in path.parts]:
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom):
                assert node.module not in past, f"{path} imports {node.module}"
                for name in node.names:
                    assert f"{node.module}.{name.name}" != "holdfast.wire", f"{path} imports all of wire"
                    found.get(name.name, set()).add(path.name)
            elif isinstance(node, ast.Import):
                assert not any(name.name.startswith("holdfast.wire") for name in node.names), f"{path} imports wire"
    assert found == places


def test_the_nearest_name_is_found_in_one_place() -> None:
    """The other two compare with other limits: a command that is typed, and the only Destinations of a module."""
    others = {"cli/main.py", "cli/running/serve.py"}
    users = {
        path.as_posix().rpartition("/src/holdfast/")[2]
        for path in SOURCES
        if "get_close_matches(" in path.read_text(encoding="utf-8")
    }
    assert users == {"settings.py"} | others


def test_urls_are_split_in_one_place_that_refuses_half_an_ipv6_address() -> None:
    """``urlsplit`` raises ValueError for it. The other modules split what is checked, or handle that error."""
    others = {
        "broker/config.py",
        "client/nodes.py",
        "endpoint/admin/responses.py",
        "http/client/proxies.py",
        "pipeline/landing/delta.py",
        "pipeline/options/values.py",
        "store/address.py",
        "wire/encoding/outgoing.py",
    }
    users = {
        path.as_posix().rpartition("/src/holdfast/")[2]
        for path in SOURCES
        if "urlsplit(" in path.read_text(encoding="utf-8")
    }
    assert users == {"http/urls.py"} | others


def test_written_elements_are_in_utf_8() -> None:
    """By default, lxml writes ASCII with references to other characters, and a name must not have one."""
    written = re.compile(r"etree\.tostring\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
    calls = [call for path in SOURCES for call in written.findall(path.read_text(encoding="utf-8"))]
    assert len(calls) > 20
    assert [call for call in calls if "encoding=" not in call and "c14n" not in call] == []


def test_no_simple_queue_is_asked_with_a_timeout() -> None:
    """CPython's may wait for ever, if the thread is interrupted within ``get`` for longer than the timeout."""
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCES}
    asked = re.compile(r"\.get\((?:True, |block=True, )?timeout=")
    strays = [str(path) for path, text in texts.items() if "SimpleQueue" in text and asked.search(text)]
    assert not strays, "\n".join(strays)


def test_no_function_is_longer_than_a_page() -> None:
    too_long = [
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name}: {length(function)} lines"
        for path in SOURCES
        for function in functions(path)
        if length(function) > LONGEST_FUNCTION
    ]
    assert not too_long, "\n".join(too_long)


def test_no_constructor_has_more_arguments_than_can_be_kept_in_mind() -> None:
    """Dataclasses of settings and records are not constructors in this sense."""
    too_many = set()
    for path in SOURCES:
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                for one in node.body:
                    if isinstance(one, ast.FunctionDef) and one.name == "__init__":
                        given = len(one.args.args) - 1 + len(one.args.kwonlyargs)
                        if given > MOST_ARGUMENTS:
                            too_many.add(f"{path.relative_to(ROOT)}: {node.name}, {given} arguments")
    assert not too_many


def test_no_file_is_longer_than_can_be_kept_in_mind() -> None:
    sizes = {path.relative_to(ROOT): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    too_long = [f"{path}: {lines} lines" for path, lines in sizes.items() if lines > LONGEST_FILE]
    assert not too_long, "\n".join(too_long)


def test_the_name_of_a_test_is_a_sentence_that_fits_a_line() -> None:
    too_long = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for name in re.findall(r"\bdef (test_\w+)", path.read_text(encoding="utf-8"))
        if len(name) > LONGEST_TEST_NAME
    ]
    assert not too_long, "\n".join(too_long)


def test_every_module_with_code_says_what_it_owns() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if isinstance(tree := nodes(path)[0], ast.Module) and tree.body and ast.get_docstring(tree) is None
    ]
    assert not silent, "\n".join(silent)


ROOMS = sorted(path.parent for path in (ROOT / "src" / "holdfast").glob("*/**/__init__.py"))


def test_no_room_holds_more_files_than_can_be_kept_in_mind() -> None:
    full = {room: len([*room.glob("*.py")]) - 1 for room in ROOMS}
    too_full = [f"{room.relative_to(ROOT)}: {files} files" for room, files in full.items() if files > FULLEST_ROOM]
    assert len(ROOMS) > 40 and not too_full, "\n".join(too_full)


def test_every_room_says_what_it_owns_what_it_may_not_know_and_what_to_open_first() -> None:
    """A room without modules of its own is a part of the one above."""
    said = {
        room: ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or "" for room in ROOMS
    }
    wanted = (r"\bowns\b", r"\bknows?\b|\bdecides nothing\b|\bcreates no\b", r"\bOpen\b")
    silent = [
        f"{room.relative_to(ROOT)}: {word}"
        for room, text in said.items()
        for word in wanted
        if re.search(word, text) is None
    ]
    assert not silent, "\n".join(silent)


HUBS = {"holdfast.core.sending.context", "holdfast.simulation.world"}
"""What its parts share, and name for its type only: the outboxes of an endpoint, and the endpoints of a world."""


def imported(path: Path, modules: set[str]) -> set[str]:
    """The modules that a module imports, at the start, in functions and for types; of types, none from a hub."""
    for_types = [one for one in nodes(path) if isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING"]
    typed = {id(one) for block in for_types for one in block.body}
    found: set[str] = set()
    for one in nodes(path):
        names = [name.name for name in one.names] if isinstance(one, ast.Import | ast.ImportFrom) else []
        if isinstance(one, ast.ImportFrom):
            names = [f"{one.module}.{name}" if f"{one.module}.{name}" in modules else str(one.module) for name in names]
        found |= {name for name in names if name in modules and not (id(one) in typed and name in HUBS)}
    return found


def test_no_modules_import_each_other_not_even_for_types() -> None:
    package = ROOT / "src" / "holdfast"
    names = {
        ".".join(("holdfast", *path.relative_to(package).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in package.rglob("*.py")
    }
    graph = {name: imported(path, set(names)) - {"holdfast"} for name, path in names.items() if name != "holdfast"}
    assert graph.keys() >= HUBS and sum(map(len, graph.values())) > 2000
    TopologicalSorter(graph).prepare()  # a CycleError names the modules of a circle


BRANCHES = ast.If | ast.IfExp | ast.While | ast.Match | ast.Try | ast.BoolOp


def decides(path: Path) -> bool:
    """Whether a function of the module has a branch."""
    return any(
        isinstance(node, BRANCHES)
        for function in nodes(path)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    )


def test_each_module_that_decides_has_a_test_file_of_its_name_or_one_that_names_it() -> None:
    """A test file that covers modules with other names says so in its docstring: "Covers core/policy.py and …"."""
    package, tests = ROOT / "src" / "holdfast", ROOT / "tests"
    covered: set[str] = set()
    for path in tests.rglob("test_*.py"):
        said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        covered.update(re.findall(r"[\w/]+\.py", said.partition("Covers ")[2]))
    stale = [name for name in sorted(covered) if not (package / name).is_file()]
    assert not stale, "\n".join(stale)
    untold = [
        name
        for path in sorted(package.rglob("*.py"))
        if path.name not in ("__init__.py", "__main__.py")
        and (name := path.relative_to(package).as_posix()) not in covered
        and not (tests / path.relative_to(package).with_name(f"test_{path.name}")).is_file()
        and decides(path)
    ]
    assert not untold, "\n".join(untold)


def test_no_loose_ends_are_left_in_the_source() -> None:
    ends = lines_matching(r"\b(TODO|FIXME|XXX|HACK)\b", SOURCES)
    assert not ends, "\n".join(ends)


def test_no_error_is_swallowed_whole() -> None:
    swallowed = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in SOURCES
        for node in nodes(path)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id in {"Exception", "BaseException"}))
        and all(isinstance(statement, ast.Pass) for statement in node.body)
    ]
    assert not swallowed, "\n".join(swallowed)


def _reads_others(node: ast.AST, decoders: set[str]) -> bool:
    """Whether it calls ``json.loads`` or one of msgspec's decoders, on bytes or text."""
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    return called == "json.loads" or called in decoders or re.fullmatch(r"msgspec\.\w+\.decode", called) is not None


def test_who_minds_what_cannot_be_decoded_minds_what_nests_too_deeply() -> None:
    """A RecursionError is none of a decoder's own errors; a run of brackets, or one damaged byte, is enough for it."""
    wrong = []
    tries = 0
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        decoders = set(re.findall(r"^(\w+) = msgspec\.\w+\.Decoder\(.*\)\.decode$", text, re.MULTILINE))
        for node in nodes(path):
            if not isinstance(node, ast.Try) or not node.handlers:
                continue
            if any(_reads_others(one, decoders) for part in node.body for one in ast.walk(part)):
                tries += 1
                named = " ".join(ast.unparse(one.type) for one in node.handlers if one.type is not None)
                if re.search(r"ValueError|DecodeError", named) and "RecursionError" not in named:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: except {named}")
    assert tries > 10
    assert not wrong, "\n".join(wrong)


def test_a_silenced_type_error_is_named() -> None:
    unnamed = lines_matching(r"# type: ignore(?!\[)", SOURCES)
    assert not unnamed, "\n".join(unnamed)


def test_acknowledgement_is_spelt_as_the_specification_spells_it() -> None:
    of_2003 = ROOT / "src/holdfast/wire/dialects/rm_200303.py"  # the schema of 2003/03 has no second "e"
    misspelt = lines_matching(r"(?i)acknowledgment", [path for path in SOURCES if path != of_2003])
    assert not misspelt, "\n".join(misspelt)


def test_every_link_between_pages_leads_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", page.read_text(encoding="utf-8"))
        if "://" not in target and not target.startswith("mailto:") and not (page.parent / target).exists()
    ]
    assert not broken, "\n".join(broken)


def test_documentation_and_scripts_name_no_path_of_one_machine() -> None:
    paths = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md")), *SOURCES]
    paths += [path for path in sorted((ROOT / "scripts").iterdir()) if path.is_file()]
    found = lines_matching(r"(?<![\w.])/(home|root|Users)/\w", paths)
    assert not found, "\n".join(found)


def test_the_name_of_every_log_event_is_a_noun_and_what_happened_to_it() -> None:
    called = re.compile(r"""\blog\.(?:debug|info|warning|error|critical|exception)\(\s*"([^" %]+)\"""")
    names = {name for path in SOURCES for name in called.findall(path.read_text(encoding="utf-8"))}
    assert len(names) > 50
    assert not [name for name in names if not re.fullmatch(r"[a-z_]+\.[a-z_]+", name)]


TEXTS_OF_OTHERS = {"error", "message", "reason", "why", "problem", "failure"}
"""What variables and attributes with a text that is composed elsewhere are called: it may end with punctuation."""


def _doubled(node: ast.JoinedStr) -> Iterator[str]:
    """Texts of others in an f-string before a punctuation mark, unless :func:`holdfast.exceptions.clause` ends them."""
    for one, after in zip(node.values, node.values[1:], strict=False):
        if isinstance(one, ast.FormattedValue) and one.conversion == -1 and isinstance(after, ast.Constant):
            name = re.fullmatch(r"(?:[\w.]+\.)?(\w+)", ast.unparse(one.value).removeprefix("str(").removesuffix(")"))
            if name and name[1] in TEXTS_OF_OTHERS and re.match(r"[.;,!?](\s|$)", str(after.value)):
                yield ast.unparse(one.value)


def test_double_punctuation_is_found() -> None:
    found = [
        name
        for text in ("{error}.", "{a.message}; then", "{str(error)}. b", "{clause(error)}.", "{error!r}.", "{error}: a")
        for node in ast.walk(ast.parse(f"f{text!r}"))
        if isinstance(node, ast.JoinedStr)
        for name in _doubled(node)
    ]
    assert found == ["error", "a.message", "str(error)"]


def test_a_sentence_that_goes_on_after_the_text_of_another_has_one_punctuation_mark() -> None:
    """Such as "The database does not answer: … TCP/IP connections?."; and no text has two in a row of its own."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {name}"
        for path in (ROOT / "src").rglob("*.py")
        for node in nodes(path)
        if isinstance(node, ast.JoinedStr)
        for name in _doubled(node)
    ]
    assert not wrong, "\n".join(wrong)


COMMANDS = ("pip", "holdfast", "ulimit")
KEYWORDS = ("wsdl", "sessions", "floor", "first", "backoff")
"""Names of arguments and settings with which a sentence may begin: they have no upper case."""


def test_a_remedy_begins_like_a_sentence_or_with_a_command() -> None:
    wrong = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in nodes(path):
            is_assigned = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "remedy"
            if not is_assigned and not (isinstance(node, ast.keyword) and node.arg == "remedy"):
                continue
            assert isinstance(node, ast.keyword | ast.Assign)
            said = [node.value.body, node.value.orelse] if isinstance(node.value, ast.IfExp) else [node.value]
            for one in said:
                first = one.values[0] if isinstance(one, ast.JoinedStr) and one.values else one
                text = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
                if text[:1].islower() and text.partition(" ")[0] not in (*COMMANDS, *KEYWORDS):
                    wrong.append(f"{path.relative_to(ROOT)}:{one.lineno}: {text}")
    assert not wrong, "\n".join(wrong)
