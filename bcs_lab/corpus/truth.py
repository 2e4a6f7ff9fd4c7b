"""Right answers known by construction, as a table: ``pair_id`` and one column a question, null where unknown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bcs_lab.errors import CorpusError
from bcs_lab.teachers.protocol import Protocol

#: Name of the file in a made corpus and in a bundle.
TRUTH = "truth.parquet"


def write_truth(path: Path, ids: Sequence[str], truth: np.ndarray, protocol: Protocol) -> None:
    """Write right answers as a table: ``pair_id`` and one column a question, null where unknown.

    Args:
        path: a Parquet file.
        ids: pair ids.
        truth: ``[n_pairs, n_questions]``, NaN where unknown.
        protocol: names of the columns.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {"pair_id": pa.array(list(ids), type=pa.string())}
    for q, question in enumerate(protocol.ids):
        columns[question] = pa.array(truth[:, q].astype(np.float32), type=pa.float32(), from_pandas=True)
    pq.write_table(pa.table(columns), path, compression="zstd")


def read_truth(path: Path, ids: Sequence[str], protocol: Protocol) -> np.ndarray:
    """Right answers in the order of ``ids``: float32 ``[n_pairs, n_questions]``, NaN where unknown.

    Raises:
        CorpusError: the file is damaged, or lacks a question or a pair.
    """
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as parquet:
            table = parquet.read()
        row_of = {pair_id: row for row, pair_id in enumerate(table["pair_id"].to_pylist())}
        rows = np.array([row_of[pair_id] for pair_id in ids], dtype=np.int64)
        columns = [table[question].to_numpy().astype(np.float32) for question in protocol.ids]
    except Exception as error:
        raise CorpusError(
            f"{path}: expected the columns pair_id, {', '.join(protocol.ids)} and a row for every pair "
            f"({type(error).__name__}: {error})."
        ) from error
    return np.stack(columns, axis=1)[rows]
