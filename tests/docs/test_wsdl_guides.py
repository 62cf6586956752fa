"""The programs and commands of the guides on operations by name, run against each other as they stand."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from guides import blocks, run, served
from order_service import WSDL

ADDRESS = "http://localhost:8080/"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The program of the guide on offering, run by its command at a free port; its URL and a directory for clients."""
    place = tmp_path_factory.mktemp("service")
    for name in ("orders.wsdl", "orders.xsd"):
        shutil.copy(WSDL.parent / name, place)
    (program,) = blocks("offer-operations.md", "python")
    (place / "orders.py").write_text(program, encoding="utf-8")
    command = next(
        line for text in blocks("offer-operations.md", "bash") for line in text.splitlines() if "serve" in line
    )
    with served(place, command) as (url, _):
        yield url, tmp_path_factory.mktemp("client")


def at(url: str, text: str) -> str:
    return text.replace(ADDRESS, url)


def test_the_words_of_the_guide_are_those_of_the_command(service: tuple[str, Path]) -> None:
    url, place = service
    (told,) = blocks("call-by-name.md", "text")
    assert run(place, "-m", "holdfast", "wsdl", f"{url}?wsdl") == at(url, told)


def test_the_programs_of_the_guide_call_the_service(service: tuple[str, Path]) -> None:
    url, place = service
    stubs = next(line for text in blocks("call-by-name.md", "bash") for line in text.splitlines() if "--stubs" in line)
    run(place, "-m", *shlex.split(at(url, stubs)))
    said = [run(place, "-c", at(url, program)) for program in blocks("call-by-name.md", "python")]
    refused = "Too many of nail. OrderRefused {'item': 'nail', 'limit': 100}\n"
    assert said == ["1 12.50\n", "1\n", refused, "1.25\n"]


def test_the_command_of_the_guide_sends_values_from_json(service: tuple[str, Path]) -> None:
    url, place = service
    (commands,) = [text for text in blocks("call-by-name.md", "bash") if "order.json" in text]
    write, send = at(url, commands).splitlines()
    subprocess.run(["sh", "-c", write], cwd=place, check=True)
    assert run(place, "-m", *shlex.split(send)) == '{"number": 1, "total": "12.50"}\n'
