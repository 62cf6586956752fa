"""The tokens of a source: each for its uses, until they expire, over restarts."""

from __future__ import annotations

from pathlib import Path

from holdfast.security.conversation.source_tokens import SourceToken, SourceTokens
from holdfast.security.conversation.token_requests import Granted

GRANTED = Granted("urn:token", "", b"k" * 32, 1000)
TOKEN = SourceToken("urn:trust", "urn:token", "", b"k" * 32, 1000, 1100)


def test_a_token_is_found_for_each_of_its_uses_until_it_expires(tmp_path: Path) -> None:
    tokens = SourceTokens(tmp_path / "tokens")
    tokens.keep("urn:trust", GRANTED, 100)
    for use in ("one", "two"):
        tokens.use(use, "urn:token")
        assert tokens.find(use, 1099) == TOKEN
    assert tokens.find("three", 100) is None
    assert tokens.find("one", 1100) is None


def test_tokens_and_their_uses_survive_a_restart(tmp_path: Path) -> None:
    tokens = SourceTokens(tmp_path / "tokens")
    tokens.keep("urn:trust", GRANTED, 100)
    tokens.use("one", "urn:token")
    assert SourceTokens(tmp_path / "tokens").find("one", 200) == TOKEN
    assert (tmp_path / "tokens").stat().st_mode & 0o777 == 0o600


def test_a_renewed_token_keeps_its_uses(tmp_path: Path) -> None:
    tokens = SourceTokens()
    tokens.keep("urn:trust", GRANTED, 100)
    tokens.use("one", "urn:token")
    tokens.keep("urn:trust", Granted("urn:token", "urn:second", b"l" * 32, 1000), 900)
    assert tokens.find("one", 1500) == SourceToken("urn:trust", "urn:token", "urn:second", b"l" * 32, 1000, 1900)


def test_what_is_forgotten_or_has_expired_is_gone() -> None:
    tokens = SourceTokens()
    for identifier, at in (("urn:old", 0), ("urn:token", 500)):
        tokens.keep("urn:trust", Granted(identifier, "", b"", 1000), at)
        tokens.use(identifier, identifier)
    tokens.keep("urn:trust", Granted("urn:new", "", b"", 1000), 1200)
    count = """SELECT (SELECT count(*) FROM holdfast_source_tokens WHERE space = :space),
        (SELECT count(*) FROM holdfast_source_uses WHERE space = :space)"""
    assert tokens._db.run("", count) == [(2, 1)]
    tokens.forget("urn:token")
    assert tokens._db.run("", count) == [(1, 0)]
