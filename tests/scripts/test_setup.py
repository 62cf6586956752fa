"""The set-up of scripts/test and scripts/demo, with a scripted interpreter in Python's place: nothing is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
TOOLS = ["bash", "cat", "chmod", "cmp", "cp", "cut", "dirname", "env", "find", "flock", "mkdir", "realpath", "rm"]
TOOLS += ["mktemp", "sed", "sleep", "tail"]

# Answers as the real one would to what _setup.sh asks, and notes every installation.
INTERPRETER = """#!/usr/bin/env bash
case "$*" in
    --version) echo "Python 3.12.1" ;;
    "-m venv --clear .venv") rm -rf .venv && mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    "-m pip install "*) echo "$*" >>pip-calls; echo "a line of pip's"; [ ! -e pip-fails ] ;;
    "-m mypy") echo "types are looked at"; [ ! -e fails ] ;;
    "-m pytest "*)
        echo "ran: $*"
        [ -z "${WCF_CLIENT:-}" ] || echo "with: $WCF_CLIENT"
        [ ! -e fails ]
        ;;
esac
"""


class Checkout:
    def __init__(self, root: Path) -> None:
        self.root = root / "checkout"
        self.path = root / "bin"
        self.path.mkdir(parents=True)
        shutil.copytree(SCRIPTS, self.root / "scripts")
        (self.root / "pyproject.toml").write_text("first\n")
        for tool in TOOLS:
            if found := shutil.which(tool):
                (self.path / tool).symlink_to(found)

    def interpreter(self, name: str, script: str = INTERPRETER) -> None:
        (self.path / name).write_text(script)
        (self.path / name).chmod(0o755)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run_whole(*(arguments or ("tests/x",)))

    def run_whole(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.root / "scripts" / "test"), *arguments],
            env={"PATH": str(self.path), "HOME": os.environ.get("HOME", "/"), **environment},
            cwd=self.root.parent,
            capture_output=True,
            text=True,
            timeout=200,
        )

    @property
    def installations(self) -> int:
        calls = self.root / "pip-calls"
        return len(calls.read_text().splitlines()) if calls.exists() else 0


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_without_python_it_says_what_to_install(checkout: Checkout) -> None:
    run = checkout.run()
    assert run.returncode == 1
    assert "Python 3.11 or newer is needed" in run.stderr
    assert "apt-get install python3 python3-venv" in run.stderr


def test_an_old_python_is_named(checkout: Checkout) -> None:
    checkout.interpreter("python3", '#!/usr/bin/env bash\n[ "$1" = --version ] && echo "Python 3.9.2"\n')
    run = checkout.run()
    assert run.returncode == 1
    assert "Python 3.11 or newer is needed; python3 is Python 3.9.2" in run.stderr


def test_a_python_without_venv_is_told_apart_from_an_old_one(checkout: Checkout) -> None:
    checkout.interpreter("python3", '#!/usr/bin/env bash\n[[ "$*" != *ensurepip* ]]\n')
    run = checkout.run()
    assert run.returncode == 1
    assert "python3 is new enough, but cannot make a virtual environment" in run.stderr


def test_the_first_interpreter_that_works_is_taken(checkout: Checkout) -> None:
    checkout.interpreter("python3", "#!/usr/bin/env bash\nexit 127\n")  # a version manager's shim
    checkout.interpreter("python3.12")
    run = checkout.run()
    assert run.returncode == 0, run.stderr
    assert "with Python 3.12.1" in run.stderr


def test_the_second_start_installs_nothing_and_passes_the_arguments_on(checkout: Checkout) -> None:
    checkout.interpreter("python3")
    assert checkout.run().returncode == 0
    assert checkout.installations == 1
    run = checkout.run("tests/wire", "-k", "a fault")
    assert (run.returncode, run.stdout, run.stderr) == (0, "ran: -m pytest tests/wire -k a fault\n", "")
    assert checkout.installations == 1


def test_a_changed_project_is_installed_anew_in_the_same_environment(checkout: Checkout) -> None:
    checkout.interpreter("python3")
    checkout.run()
    (checkout.root / "pyproject.toml").write_text("second\n")
    run = checkout.run()
    assert run.returncode == 0
    assert "making a virtual environment" not in run.stderr
    assert checkout.installations == 2


def test_a_checkout_that_moved_gets_a_new_environment(checkout: Checkout) -> None:
    checkout.interpreter("python3")
    checkout.run()
    checkout.root = checkout.root.rename(checkout.root.with_name("elsewhere"))
    run = checkout.run()
    assert run.returncode == 0
    assert "making a virtual environment" in run.stderr


def test_a_failed_installation_shows_why_and_is_tried_again(checkout: Checkout) -> None:
    checkout.interpreter("python3")
    (checkout.root / "pip-fails").touch()
    run = checkout.run()
    assert run.returncode == 1
    assert run.stdout == ""
    assert "a line of pip's" in run.stderr
    assert "the installation failed" in run.stderr
    (checkout.root / "pip-fails").unlink()
    assert checkout.run().returncode == 0
    assert checkout.installations == 2


def words_of_pytest(run: subprocess.CompletedProcess[str]) -> list[set[str]]:
    return [set(line.split()) for line in run.stdout.splitlines() if line.startswith("ran: -m pytest ")]


def test_every_test_is_run_once_and_what_fails_is_named_at_the_end(checkout: Checkout) -> None:
    checkout.interpreter("python3")
    checkout.run()
    linter = checkout.root / ".venv" / "bin" / "lint-imports"
    linter.write_text("#!/usr/bin/env bash\nexit 1\n")
    linter.chmod(0o755)
    run = checkout.run_whole()
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1] == "holdfast: NOT passed: rooms: import contracts"
    (words,) = words_of_pytest(run)
    assert not any(word.startswith(("tests/", "--ignore=", "--cov", "-m=")) for word in words)

    linter.write_text("#!/usr/bin/env bash\n")
    (checkout.root / "fails").touch()
    run = checkout.run_whole()
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1] == "holdfast: NOT passed: tests, types: mypy"
    assert "types are looked at\n" in run.stdout
    (checkout.root / "fails").unlink()

    run = checkout.run_whole("--coverage")
    assert run.returncode == 0, run.stderr
    (measured,) = words_of_pytest(run)
    rooms = {word.removeprefix("tests/") for word in measured if word.startswith("tests/")}
    assert rooms == {word.removeprefix("--cov=holdfast.") for word in measured if word.startswith("--cov=")}
    assert "core" in rooms
    assert any(word.startswith("--cov-fail-under=") for word in measured)


def test_the_wcf_client_is_what_the_environment_names_or_lies_beside_the_checkout(checkout: Checkout) -> None:
    checkout.interpreter("python3")
    checkout.run()
    assert "with:" not in checkout.run().stdout
    for folder in (".hidden", "shared/peers/wcf"):
        program = checkout.root.parent / folder / "wcfclient"
        program.parent.mkdir(parents=True)
        program.touch(0o755)
    assert f"with: {program}\n" in checkout.run().stdout
    assert "with: /elsewhere/client\n" in checkout.run_whole("tests/x", WCF_CLIENT="/elsewhere/client").stdout
    assert f"holdfast: the WCF client: {program}\n" in checkout.run_whole().stderr
