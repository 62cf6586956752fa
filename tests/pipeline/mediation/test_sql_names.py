"""The names of rows in SQL: found where a query reads them, and nowhere else.

Covers pipeline/mediation/definition/sql_names.py.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.pipeline.mediation.definition.sql_names import relations, replaced

QUERIES = {
    "SELECT * FROM a": ["a"],
    "select x from `a` t left outer join b on t.id = b.id JOIN c USING (id)": ["a", "b", "c"],
    "SELECT * FROM a, b AS t, c u WHERE t.id = u.id": ["a", "b", "c"],
    "SELECT EXTRACT(YEAR FROM at), trim(BOTH 'x' FROM name), substring(name FROM 2) FROM a": ["a"],
    "SELECT * FROM a WHERE x IS NOT DISTINCT FROM y": ["a"],
    "SELECT 'FROM x', \"FROM y\" -- FROM z\n/* JOIN w */ FROM a": ["a"],
    "SELECT 'it''s FROM x', 'a\\' FROM x' FROM a": ["a"],
    "WITH b AS (SELECT * FROM a), c (x, y) AS (SELECT * FROM b) SELECT * FROM c JOIN B ON true": ["a"],
    "SELECT * FROM (SELECT * FROM a) t WHERE id IN (SELECT id FROM b)": ["a", "b"],
    "SELECT * FROM a LATERAL VIEW explode(x) t AS y": ["a"],
    "SELECT * FROM a JOIN LATERAL (SELECT * FROM b) t": ["a", "b"],
    "SELECT * FROM range(5) JOIN VALUES (1), (2) t(x)": [],
    "SELECT * FROM spark_catalog.db.t": [],
    "SELECT * FROM a UNION ALL SELECT * FROM b": ["a", "b"],
    "SELECT": [],
    "FROM": [],
    ")) FROM (": [],
}


@pytest.mark.parametrize("sql", QUERIES)
def test_names_of_rows_are_found_and_no_other_ones(sql: str) -> None:
    assert relations(sql) == QUERIES[sql]


@given(st.text(alphabet="ab `'\"(),.;-*/\\\n", max_size=40).map(lambda text: f"SELECT {text} FROM a"))
def test_any_text_is_searched_without_an_error(sql: str) -> None:
    relations(sql)
    assert replaced(sql, "zz", "a") == sql


def test_a_name_is_replaced_where_it_is_no_text() -> None:
    assert replaced("SELECT 'ab', Ab.x FROM `ab` -- ab", "ab", "c") == "SELECT 'ab', c.x FROM c -- ab"
