"""What a node knows of its cluster, as values and as JSON."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from holdfast.cluster.view import View

NAMES = st.text(min_size=1, max_size=20)
PARTITIONS = st.integers(0, 63)


@given(
    st.builds(
        View,
        NAMES,
        st.dictionaries(PARTITIONS, st.integers(1, 1 << 60)),
        st.dictionaries(PARTITIONS, NAMES),
        st.dictionaries(NAMES, st.text()),
        st.booleans(),
        st.text(),
        st.lists(NAMES).map(tuple),
        st.dictionaries(PARTITIONS, st.text()),
        st.text(),
        st.dictionaries(NAMES, st.lists(NAMES).map(tuple)),
        st.dictionaries(PARTITIONS, st.integers(1, 1 << 60)),
        st.text(),
    )
)
def test_a_view_survives_json(view: View) -> None:
    assert View.from_json(json.loads(json.dumps(view.to_json()))) == view


def test_the_json_has_partitions_and_nodes_in_order() -> None:
    view = View("b", {11: 3, 2: 1}, {11: "b", 2: "b", 3: "a"}, {"b": "http://b:9/", "a": "http://a:9/"})
    assert json.dumps(view.to_json()) == (
        '{"node": "b", "mine": {"2": 1, "11": 3}, "owners": {"2": "b", "3": "a", "11": "b"}, '
        '"nodes": {"a": "http://a:9/", "b": "http://b:9/"}, "is_draining": false, "trouble": "", '
        '"cut_off_by": [], "failed": {}, "engine": "the database of the cluster", "differing": {}, "preparing": {}, '
        '"created": ""}'
    )
