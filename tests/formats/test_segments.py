"""SEGMENTS by hand."""

import numpy as np

from scalelab.formats import Specials, segments


def test_documents_are_cut_and_nothing_is_dropped(documents_of, listed) -> None:
    documents = documents_of([[3, 4], [], [1], [2, 6]])
    given = dict(specials=Specials((), (2,), ()), max_len=4, seed=0)
    chunks = list(segments.build(documents, **given))
    rows, dropped = listed(chunks)
    texts = [row[0] for row in rows]
    assert texts == [
        [100, 101, 102, 103], [104, 105, 106], [107], [108, 109, 110, 111], [112, 113, 114, 115],
    ]  # fmt: skip
    assert dropped == 0
    assert np.concatenate([c.flat["continues"] for c in chunks]).tolist() == [0, 1, 0, 0, 1]
    assert sum(row[2] for row in rows) == documents.sentence_bytes.sum()
    some = segments.build(documents, **given, document_ids=np.array([3]))
    assert listed(some)[0] == rows[3:]
    framed, _ = listed(segments.build(documents, **given | {"specials": Specials((1,), (), (3,))}))
    assert [row[0] for row in framed][:2] == [[1, 100, 101, 3], [1, 102, 103, 3]]
