"""Tables of measurements: rows in pixels become columns whose names say their unit, as CSV and Parquet.

If the size of a pixel is known for every photo, lengths and areas are in the real unit, as in `perimeter_um`. If it is
known for none, they are in pixels, as in `perimeter_px`. If it is known for some, there are both, and what is not known
is empty. The number of pixels, `area_px`, is always there. `columns.csv` says what every column means.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emat.errors import needs_extra
from emat.formats.results import csv_cells
from emat.measure.properties import AREA, LENGTH, Row, Value, column_of, object_columns
from emat.measure.units import METRES, Scale
from emat.outputs import whole_file

TABLES = ("objects", "photos")
PIXEL = "px"
LAST = (
    "within", "within_area", "area_within", "share_within", "verdict", "not_met", "pixel_size", "unit", "unit_source",
)  # fmt: skip
BATCH = 10_000  # rows that are in memory at a time
POWER = {LENGTH: 1, AREA: 2}


@dataclass(frozen=True)
class TableColumn:
    """A column as it is written: which value of a row, and in which unit."""

    name: str
    key: str
    unit: str = ""  # a real unit, PIXEL, or empty for values that are neither lengths nor areas
    power: int = 0

    def value(self, row: Row) -> Value:
        """Return the cell of a row; None if it has no such value, or its unit is not known."""
        value = row.get(self.key)
        if not self.power or self.unit == PIXEL or not isinstance(value, (int, float)):
            return value
        scale = scale_of(row)
        return None if scale is None else value * scale.in_unit(self.unit).side ** self.power

    @property
    def written_unit(self) -> str:
        """The unit as the data dictionary names it."""
        if not self.power:
            return column_of(self.key).kind
        return f"{self.unit}{self.power if self.power > 1 and self.unit != PIXEL else ''}"


def with_scale(row: Row, scale: Scale | None) -> Row:
    """Return a row that says the size of its pixels and where that comes from."""
    if scale is None:
        return {**row, "pixel_size": 1, "unit": PIXEL, "unit_source": "not known"}
    return {**row, "pixel_size": scale.side, "unit": scale.unit, "unit_source": scale.source}


def scale_of(row: Row) -> Scale | None:
    """Return the scale that `with_scale` wrote into a row."""
    unit, side = row.get("unit"), row.get("pixel_size")
    if unit not in METRES or not isinstance(side, (int, float)):
        return None
    return Scale(float(side), str(unit), str(row.get("unit_source", "")))


def columns_for(rows: Iterable[Row]) -> list[TableColumn]:
    """Choose the columns of a table from its rows, and their units."""
    keys: dict[str, None] = {}
    units: dict[str | None, None] = {}
    for row in rows:
        keys.update(dict.fromkeys(row))
        scale = scale_of(row)
        units[None if scale is None else scale.unit] = None
    real = next((unit for unit in units if unit is not None), None)
    ordered = [*(key for key in keys if key not in LAST), *(key for key in LAST if key in keys)]
    columns = []
    for key in ordered:
        power = POWER.get(column_of(key).kind, 0)
        if not power:
            columns.append(TableColumn(key, key))
            continue
        if real is None or None in units or key == "area":
            columns.append(TableColumn(f"{key}_{PIXEL}", key, PIXEL, power))
        if real is not None:
            columns.append(TableColumn(f"{key}_{real}{power if power > 1 else ''}", key, real, power))
    return columns


def cell(value: Value) -> str:
    """Write a value; nothing for what is not known.

    >>> [cell(value) for value in (None, True, 3, 3.0, 1234.56789, 0.1 + 0.2, "leaf")]
    ['', 'true', '3', '3', '1234.568', '0.3', 'leaf']
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.7g}"
    return str(value)


def _none() -> Iterator[Row]:
    return iter(())


@dataclass(frozen=True)
class Table:
    """A table whose rows may be read several times, and are never all in memory."""

    name: str
    rows: Callable[[], Iterator[Row]]
    columns: Sequence[TableColumn]

    @classmethod
    def of(cls, name: str, rows: Callable[[], Iterator[Row]], otherwise: Callable[[], Iterator[Row]] = _none) -> Table:
        """Make a table of rows, and choose its columns; of `otherwise`, if there are no rows."""
        return cls(name, rows, columns_for(rows()) or columns_for(otherwise()))

    def values(self) -> list[dict[str, Value]]:
        """Return all rows in real units, with the names of the columns."""
        return [{column.name: column.value(row) for column in self.columns} for row in self.rows()]

    def write_csv(self, path: Path) -> None:
        """Write the table as CSV, whole or not at all."""
        with whole_file(path) as unfinished, unfinished.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(csv_cells(column.name for column in self.columns))
            writer.writerows(csv_cells(cell(column.value(row)) for column in self.columns) for row in self.rows())

    def write_parquet(self, path: Path) -> None:
        """Write the table as Parquet, whole or not at all; its fields carry their unit and meaning.

        Raises:
            EmatError: pyarrow is not installed.
        """
        with needs_extra("Parquet", "measure"):
            import pyarrow
            from pyarrow import parquet
        kinds = {str: pyarrow.string(), bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64()}
        fields = [
            pyarrow.field(
                column.name,
                kinds[self._kind(column)],
                metadata={"unit": column.written_unit, "meaning": column_of(column.key, self.name).meaning},
            )
            for column in self.columns
        ]
        schema = pyarrow.schema(fields)
        with whole_file(path) as unfinished, parquet.ParquetWriter(unfinished, schema) as writer:
            for rows in _batches(self.rows()):
                values = [[_as(self._kind(column), column.value(row)) for row in rows] for column in self.columns]
                writer.write_table(pyarrow.table(values, schema=schema))

    def _kind(self, column: TableColumn) -> type:
        return column_of(column.key, self.name).type if not column.power or column.unit == PIXEL else float


def tables_of(
    objects: Callable[[], Iterator[Row]], photos: Callable[[], Iterator[Row]], groups: Sequence[str]
) -> tuple[Table, Table]:
    """Make the tables of objects and of photos.

    Args:
        objects: Gives the rows of the objects. If there is none, the table still has columns.
        photos: Gives the rows of photos and classes.
        groups: Which groups of properties were measured.
    """

    def like_objects() -> Iterator[Row]:
        said = ("pixel_size", "unit", "unit_source")
        return ({**dict.fromkeys(object_columns(groups)), **{key: row[key] for key in said}} for row in photos())

    return Table.of("objects", objects, like_objects), Table.of("photos", photos)


def write_tables(out: Path, tables: Sequence[Table], formats: Sequence[str]) -> None:
    """Write tables as CSV, and as Parquet if `formats` has it, with columns.csv, which says what columns mean."""
    for table in tables:
        table.write_csv(out / f"{table.name}.csv")
        if "parquet" in formats:
            table.write_parquet(out / f"{table.name}.parquet")
    write_dictionary(out / "columns.csv", tables)


def write_dictionary(path: Path, tables: Sequence[Table]) -> None:
    """Write what every column of the tables means, whole or not at all."""
    with whole_file(path) as unfinished, unfinished.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["table", "column", "unit", "meaning"])
        for table in tables:
            for column in table.columns:
                cells = (table.name, column.name, column.written_unit, column_of(column.key, table.name).meaning)
                writer.writerow(csv_cells(cells))


def _as(kind: type, value: Value) -> Any:
    return None if value is None else kind(value)


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    for row in rows:
        batch.append(row)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
