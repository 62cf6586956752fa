"""A store's location: which is a database's, what it names, and that no password of it is ever shown."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from psycopg.pq import Conninfo
from pymysql.connections import Connection

from holdfast.exceptions import ConfigurationError
from holdfast.store import address, is_sql, open_store, shown, store_exists
from holdfast.store.address import DEFAULT_PATIENCE, read_address, store_of_part


@pytest.mark.parametrize(
    "location",
    ["postgresql://h/d", "postgres://h/d", "mysql://h/d", "mariadb://h/d", "mariadb+pymysql://h/d", "PostgreSQL://h/d"],
)
def test_urls_of_databases_are_known(location):
    assert is_sql(location)
    assert read_address(location).database in ("postgresql", "mysql", "mariadb")


@pytest.mark.parametrize(
    "location", ["inbox", ":memory:", "", "redis://h/d", Path("postgresql://h/d"), "postgresql:/h"]
)
def test_nothing_else_is(location):
    assert not is_sql(location)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "mysql", "mariadb+pymysql", "Kafka"])
@pytest.mark.parametrize("rest", ["/me:word@h/d", "me:word@h/d", ""])
def test_a_url_that_has_lost_a_slash_is_no_directory(tmp_path, monkeypatch, scheme, rest):
    monkeypatch.chdir(tmp_path)
    for use in (open_store, store_exists):
        with pytest.raises(ConfigurationError, match="lacks a slash") as caught:
            use(f"{scheme}:{rest}")
        assert f"Write {scheme}://... for the URL." in caught.value.remedy
        assert "word" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_directory_may_be_named_like_a_database(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    open_store("./mysql:here").close()
    open_store("notes:2026").close()


def test_the_space_and_the_patience_are_taken_out_and_the_driver_is_named():
    found = read_address("postgres://me:word@h:99/d?host=/tmp&space=orders&patience=2.5&sslmode=require")
    assert found.url == "postgresql+psycopg://me:word@h:99/d?host=/tmp&sslmode=require"
    assert (found.database, found.space, found.patience) == ("postgresql", "orders", 2.5)
    assert found.shown == "postgres://me@h:99/d?host=/tmp&space=orders"
    plain = read_address("mysql://h/d")
    assert (plain.url, plain.space, plain.patience) == ("mysql+pymysql://h/d", "default", DEFAULT_PATIENCE)


@pytest.mark.parametrize("driver", ["psycopg", "pymysql"])
def test_every_option_of_the_installed_driver_is_known(driver):
    if driver == "psycopg":
        names = {one.keyword.decode() for one in Conninfo.get_defaults()}
    else:
        cannot_be_text = {"self", "conv", "cursorclass", "autocommit", "defer_connect", "named_pipe"}
        names = set(signature(Connection.__init__).parameters) - cannot_be_text
    assert names <= address._OPTIONS[driver]


@pytest.mark.parametrize(
    "place", ["h", "h:1", "h:65535", "[::1]", "[::1]:5432", "me:w:rd@h:5432", "", "me@", "a:5432,b:5433"]
)
def test_ports_of_every_form_of_a_host_are_accepted(place):
    assert read_address(f"postgresql://{place}/d").space == "default"
    assert read_address(f"postgresql://{place}/d?host=a:1,b&port=5432,&hostaddr=::1").space == "default"


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("postgresql+asyncpg://me:s3cr3t@h/d", "asyncpg"),
        ("postgresql://me:s3cr3t@h", "names no database"),
        ("postgresql://me:s3cr3t@h/?space=a", "names no database"),
        ("postgresql://me:s3cr3t@h/d?space=", "is not a valid space"),
        ("postgresql://me:s3cr3t@h/d?space=a%00b", "is not a valid space"),
        ("postgresql://me:s3cr3t@h/d?space=" + "x" * 101, "is not a valid space"),
        ("postgresql://me:s3cr3t@h/d?patience=soon", "'soon' is not a valid patience"),
        ("postgresql://me:s3cr3t@h/d?patience=-1", "'-1' is not a valid patience"),
        ("postgresql://me:s3cr3t@h/d?patience=nan", "'nan' is not a valid patience"),
        ("postgresql://me:s3cr3t@h:port/d", "has the port 'port'"),
        ("postgresql://me:s3cr3t@h:55432x/d", "has the port '55432x'"),
        ("postgresql://me:s3cr3t@h:65536/d", "has the port '65536'"),
        ("postgresql://me:s3cr3t@[::1]:0/d", "has the port '0'"),
        ("postgresql://me:s3cr3t@/d?host=a,b&port=5432,5433x", "has the port '5433x'"),
        ("postgresql://me:s3cr3t@/d?host=a:5432,b:5433x", "has the port '5433x'"),
        ("mariadb://me:s3cr3t@h:33o6/d", "has the port '33o6'"),
        ("postgresql://me:s3cr3t@h/d?spaec=one", "has the unknown option 'spaec'"),
        ("postgresql://me:s3cr3t@h/d?unix_socket=/s", "has the unknown option 'unix_socket'"),
        ("mariadb://me:s3cr3t@h/d?sslmode=require", "has the unknown option 'sslmode'"),
        ("oracle://me:s3cr3t@h/d", "is not the location of a store"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_remedy_and_without_the_password(location, says):
    with pytest.raises(ConfigurationError, match=says) as caught:
        open_store(location)
    assert caught.value.remedy
    assert "s3cr3t" not in str(caught.value)


secrets = st.text(min_size=1).map(lambda text: f"s3c{text}r3t")


@given(password=secrets, query=secrets)
@example(password="s3c@/?#&=:r3t", query="s3c&=r3t")
def test_no_password_is_shown_however_it_is_written(password, query):
    for written in (password, quote(password, safe="")):
        seen = shown(f"postgresql://me:{written}@host/d?space=orders&password={quote(query, safe='')}")
        assert "s3c" not in seen
        assert "r3t" not in seen
    assert shown(f"mysql://me:{quote(password, safe='')}@host:3306/d?space=o") == "mysql://me@host:3306/d?space=o"


def test_a_path_is_shown_as_it_is():
    assert shown(Path("in box")) == "in box"
    assert shown(":memory:") == ":memory:"


def test_the_url_of_a_related_space_keeps_all_other_parts():
    made = store_of_part("postgresql://me:word@h/d?host=/run/x&space=orders&sslmode=require", 2)
    assert read_address(made).space == "orders/worker-2"
    assert read_address(made).url == "postgresql+psycopg://me:word@h/d?host=/run/x&sslmode=require"
    assert read_address(store_of_part("mysql://h/d", 1)).space == "default/worker-1"


@pytest.mark.parametrize("mode", ["verify", "", "Require"])
def test_an_sslmode_that_the_driver_does_not_know_is_refused(mode: str) -> None:
    with pytest.raises(ConfigurationError, match="invalid sslmode") as caught:
        read_address(f"postgresql://me@host/db?sslmode={mode}")
    assert "verify-full" in caught.value.remedy
    assert read_address("postgresql://me@host/db?sslmode=verify-full").database == "postgresql"
