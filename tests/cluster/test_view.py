"""What a node knows of its cluster, as values and as JSON."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from holdfast.cluster.view import View
from holdfast.outages import Trouble

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
        st.none() | st.builds(Trouble, st.text(), st.text()),
    )
)
def test_a_view_survives_json(view: View) -> None:
    assert View.from_json(json.loads(json.dumps(view.to_json()))) == view
