"""Read CSV, JSON Lines and Parquet so that every cell stays the text it was and every bad row is found.

Pandas would turn a concept called ``NA`` or ``null`` into a missing value, ``01`` into 1 and ``1e5`` into 100000.0, so
the text formats are read by hand here.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bcs_lab.errors import Problem


@dataclass
class Findings:
    """Problems met so far.

    Attributes:
        rows: bad rows; they can be left out.
        files: problems of a whole file; nothing can go on without it.
    """

    rows: list[Problem] = field(default_factory=list)
    files: list[Problem] = field(default_factory=list)

    def row(self, file: str, row: int | None, message: str, pair_id: str | None = None) -> None:
        """Add a bad row."""
        self.rows.append(Problem(file, row, message, pair_id))

    def file(self, file: str, message: str, row: int | None = None) -> None:
        """Add a problem of a whole file."""
        self.files.append(Problem(file, row, message))


@dataclass
class Table:
    """A table of text.

    Attributes:
        columns: names in file order.
        rows: line (text formats) or row number (Parquet) of each record, see :class:`bcs_lab.errors.Problem`.
        cells: one dict a record; a missing or null cell is ``None``.
        lost_ids: pair ids seen in rows that could not be read.
    """

    columns: list[str]
    rows: list[int]
    cells: list[dict[str, str | None]]
    lost_ids: set[str] = field(default_factory=set)


class _Number(str):
    """A number as written, told apart from a quoted text."""


def read_table(path: Path, file: str, found: Findings) -> Table | None:
    """Read a table of any of the three formats, by its suffix; ``None`` when nothing can be read.

    Args:
        path: the file.
        file: its name in messages.
        found: receives the problems.
    """
    return {".csv": _read_csv, ".jsonl": _read_jsonl, ".parquet": _read_parquet}[path.suffix](path, file, found)


def read_bytes(path: Path, file: str, found: Findings) -> bytes | None:
    """All bytes of a non-empty file, or ``None`` and a problem."""
    try:
        data = path.read_bytes()
    except OSError as error:
        found.file(file, f"cannot be read ({error.strerror or error})")
        return None
    if not data:
        found.file(file, "the file is empty (0 bytes)")
        return None
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        found.file(file, "is UTF-16 text, expected UTF-8; save it again as UTF-8")
        return None
    return data


# --- CSV -------------------------------------------------------------------------------------------------------------


def _read_csv(path: Path, file: str, found: Findings) -> Table | None:
    data = read_bytes(path, file, found)
    if data is None:
        return None
    lines, damage = _csv_lines(data)
    reader = csv.reader(lines, strict=True)
    header: list[str] | None = None
    table = Table([], [], [])
    while True:
        line = reader.line_num + 1
        try:
            record = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            if "unexpected end of data" in str(error):
                found.file(file, 'a quote (") opened in the row that starts here is never closed', line)
                return None
            # Read leniently, so that at least the id is known and its annotations are not called strays.
            pair_id = _csv_id(next(csv.reader(lines[line - 1 : reader.line_num]), []), header, table)
            found.row(file, line, f"not valid CSV ({error})", pair_id)
            continue
        if not any(cell.strip() for cell in record) and not any(n in damage for n in range(line, reader.line_num + 1)):
            continue
        bad = next((damage[n] for n in range(line, reader.line_num + 1) if n in damage), None) if damage else None
        if header is None:
            if bad:
                found.file(file, f"the header {bad}", line)
                return None
            header = _header(record, file, line, found)
            if header is None:
                return None
            table.columns = header
            continue
        if not bad and len(record) != len(header):
            bad = f"has {len(record)} cells, but the header has {len(header)}"
            if len(record) > len(header):
                bad += ' (a value that holds a comma must be in "quotes")'
        if bad:
            found.row(file, line, bad, _csv_id(record, header, table))
            continue
        table.rows.append(line)
        table.cells.append(dict(zip(header, record, strict=True)))
    if header is None:
        found.file(file, "holds only blank lines, expected a header and one row a pair")
        return None
    return table


def _csv_id(record: list[str], header: list[str] | None, table: Table) -> str | None:
    """The pair id of a row that cannot be used, remembered in ``table.lost_ids``."""
    pair_id = dict(zip(header or [], record, strict=False)).get("pair_id")
    if not pair_id:
        return None
    pair_id = pair_id.encode("utf-8", "replace").decode()
    table.lost_ids.add(pair_id)
    return pair_id


def _csv_lines(data: bytes) -> tuple[list[str], dict[int, str]]:
    """Physical lines of a CSV, and what is wrong with those that are not clean UTF-8 text."""
    bom = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    # Undecodable bytes travel as lone surrogates, so that only their own rows are lost.
    lines = list(io.StringIO(data[bom:].decode("utf-8", "surrogateescape"), newline=""))
    damage: dict[int, str] = {}
    offset = bom
    for number, line in enumerate(lines, start=1):
        if line.isascii() and "\0" not in line:
            offset += len(line)
            continue
        stray = re.search("[\udc80-\udcff]", line)
        if stray:
            at = offset + len(line[: stray.start()].encode("utf-8", "surrogateescape"))
            byte = ord(stray.group()) - 0xDC00
            damage[number] = f"is not UTF-8: byte 0x{byte:02x} at offset {at}; save the file as UTF-8"
        elif "\0" in line:
            damage[number] = f"holds NUL bytes (from offset {offset + line.index(chr(0))}); the file is damaged"
        offset += len(line.encode("utf-8", "surrogateescape"))
        lines[number - 1] = line.replace("\0", "")
    return lines, damage


def _header(record: list[str], file: str, line: int, found: Findings) -> list[str] | None:
    if len(record) == 1:
        for delimiter, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "vertical bars")):
            if record[0].count(delimiter) >= 2:
                found.file(file, f"columns are separated by {name}, expected commas; save it as comma-separated", line)
                return None
    names = [name or f"column_{i}" for i, name in enumerate(record, start=1)]
    return names if _distinct(names, file, line, found) else None


def _distinct(names: list[str], file: str, line: int | None, found: Findings) -> bool:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        found.file(file, f"the header names {', '.join(map(repr, twice))} more than once", line)
    return not twice


# --- JSON Lines ------------------------------------------------------------------------------------------------------


class _DuplicateKey(ValueError):
    pass


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        raise _DuplicateKey(f"key {next(n for n in names if names.count(n) > 1)!r} appears twice")
    return result


_AS_VALUES = json.JSONDecoder(object_pairs_hook=_unique_keys)
_AS_WRITTEN = json.JSONDecoder(
    object_pairs_hook=_unique_keys,
    parse_int=_Number,
    parse_float=_Number,
    parse_constant=lambda name: None if name == "NaN" else _Number(name),
)


def json_records(
    path: Path, file: str, found: Findings, *, as_written: bool = False
) -> tuple[list[tuple[int, dict[str, Any]]], set[str]] | None:
    """The objects of a JSON Lines file with their lines; blank lines are passed over.

    Args:
        path: the file.
        file: its name in messages.
        found: receives a problem a bad line: torn, padded with NUL bytes, not an object, with a repeated key.
        as_written: keep numbers as the text they were written as.

    Returns:
        The records, and the pair ids seen in lines that could not be read; ``None`` when the file cannot be read.
    """
    data = read_bytes(path, file, found)
    if data is None:
        return None
    decoder = _AS_WRITTEN if as_written else _AS_VALUES
    records: list[tuple[int, dict[str, Any]]] = []
    lost_ids: set[str] = set()
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    first = next((line.strip() for line in lines if line.strip()), b"")
    if first[:1] == b"[" or first == b"{":
        found.file(file, "looks like one JSON document, expected JSON Lines: one object a line")
        return None
    for number, line in enumerate(lines, start=1):
        stripped = line.strip()
        if not stripped:
            continue
        try:
            text = stripped.decode("utf-8")
            record, end = decoder.raw_decode(text)
            if end != len(text):
                raise json.JSONDecodeError("Extra data", text, end)
            if isinstance(record, dict):
                records.append((number, record))
                continue
            reason = f"expected a JSON object, found {_kind(record)}"
        except UnicodeDecodeError as error:
            reason = f"not UTF-8: byte 0x{stripped[error.start]:02x} at byte {error.start} of the line"
        except json.JSONDecodeError as error:
            reason = _torn(stripped, error, last=number == len(lines))
        except (ValueError, RecursionError) as error:
            reason = f"not valid JSON ({error})"
        pair_id = _pair_id_of(stripped)
        if pair_id is not None:
            lost_ids.add(pair_id)
        found.row(file, number, reason, pair_id)
    return records, lost_ids


def _torn(line: bytes, error: json.JSONDecodeError, *, last: bool) -> str:
    if not line.strip(b"\0"):
        return f"{len(line)} NUL bytes in place of a record (the writer was interrupted); delete this line"
    if last:
        return f"incomplete last line (the writer was interrupted): {error.msg} at column {error.colno}"
    return f"not valid JSON: {error.msg} at column {error.colno}"


def _pair_id_of(line: bytes) -> str | None:
    match = re.search(rb'"pair_id"\s*:\s*"([^"\\]+)"', line)
    return match.group(1).decode("utf-8", "replace") if match else None


def _kind(value: Any) -> str:
    names = {list: "an array", str: "a text", bool: "true or false", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def _read_jsonl(path: Path, file: str, found: Findings) -> Table | None:
    read = json_records(path, file, found, as_written=True)
    if read is None:
        return None
    records, lost_ids = read
    columns = list(dict.fromkeys(name for _, record in records for name in record))
    cells = {name: _column_texts([record.get(name) for _, record in records]) for name in columns}
    return _from_columns(columns, [line for line, _ in records], cells, lost_ids)


# --- Parquet ---------------------------------------------------------------------------------------------------------


def read_parquet(path: Path, file: str, found: Findings) -> Any | None:
    """A ``pyarrow.Table``, or ``None`` and a problem."""
    import pyarrow.parquet as pq

    try:
        if path.stat().st_size == 0:
            found.file(file, "the file is empty (0 bytes)")
            return None
        # Not `read_table`, which would add columns for folders named like `key=value`.
        with pq.ParquetFile(path) as parquet:
            return parquet.read()
    except Exception as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        found.file(file, f"not a readable Parquet file ({first_line})")
        return None


def _read_parquet(path: Path, file: str, found: Findings) -> Table | None:
    table = read_parquet(path, file, found)
    if table is None or not _distinct(table.column_names, file, None, found):
        return None
    try:
        cells = {name: _column_texts(_arrow_values(table[name])) for name in table.column_names}
    except (UnicodeDecodeError, ValueError) as error:
        found.file(file, f"a column cannot be read as text ({error})")
        return None
    return _from_columns(table.column_names, list(range(1, table.num_rows + 1)), cells, set())


def _arrow_values(column: Any) -> list[Any]:
    import numpy as np
    import pyarrow as pa

    values = column.to_pylist()
    if pa.types.is_floating(column.type):
        # The shortest text of the stored precision: a float32 0.1 is 0.1, not 0.10000000149011612.
        kind = column.type.to_pandas_dtype()
        return [None if v is None or v != v else _float_text(v, str(np.dtype(kind).type(v))) for v in values]
    return values


def _float_text(value: float, text: str) -> _Number:
    return _Number(f"{int(value)}.0" if value.is_integer() and abs(value) < 1e15 else text)


# --- text ------------------------------------------------------------------------------------------------------------


def _from_columns(
    columns: Iterable[str], rows: list[int], cells: dict[str, list[str | None]], lost_ids: set[str]
) -> Table:
    names = list(columns)
    records = [dict(zip(names, values, strict=True)) for values in zip(*(cells[n] for n in names), strict=True)]
    return Table(names, rows, records if names else [{} for _ in rows], lost_ids)


def _column_texts(values: list[Any]) -> list[str | None]:
    """Cells of one column as text.

    A column of whole numbers that became floating point because a cell was null (1.0, 2.0, null) is written 1, 2: that
    is what it was before a tool widened it. A column with any other number keeps its numbers as written.
    """
    texts = [_text(value) for value in values]
    numbers = [text for text in texts if isinstance(text, _Number)]
    if any(n.endswith(".0") for n in numbers) and all(re.fullmatch(r"-?\d+(\.0)?", n) for n in numbers):
        return [text.removesuffix(".0") if isinstance(text, _Number) else text for text in texts]
    return [str(text) if isinstance(text, _Number) else text for text in texts]


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, float):
        return _Number(value)
    if isinstance(value, (dict, list, tuple)):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
