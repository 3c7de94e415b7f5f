"""Column names say the unit, mixed units are never hidden, and CSV and Parquet agree."""

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import parquet

from emat.measure import MeasureOptions, measure
from emat.measure.properties import Row
from emat.measure.tables import Table, tables_of, write_dictionary
from emat.measure.units import Scale
from tests.measure.shapes import disc, scene_of


def rows_for(scale: Scale | None) -> list[Row]:
    return measure(scene_of(disc(50)), MeasureOptions(groups=("size",), scale=scale)).objects


def table(*scales: Scale | None) -> Table:
    def rows() -> Iterator[Row]:
        return (row for scale in scales for row in rows_for(scale))

    return Table.of("objects", rows)


def names(of: Table) -> set[str]:
    return {column.name for column in of.columns}


def test_without_a_scale_everything_is_in_pixels() -> None:
    assert {"area_px", "perimeter_px"} <= names(table(None))
    assert not any("um" in name for name in names(table(None)) - {"euler_number"})


def test_with_a_scale_lengths_and_areas_are_in_its_unit() -> None:
    known = table(Scale(0.5, "um", "test"))
    assert {"area_px", "area_um2", "perimeter_um"} <= names(known)
    assert "perimeter_px" not in names(known)
    (row,) = list(known.rows())
    values = {column.name: column.value(row) for column in known.columns}
    assert values["area_um2"] == pytest.approx(float(values["area_px"] or 0) / 4)
    assert values["equivalent_diameter_um"] == pytest.approx(50, rel=0.01)
    assert values["unit_source"] == "test"


def test_a_table_with_and_without_a_scale_has_both_and_gaps(tmp_path: Path) -> None:
    mixed = table(Scale(0.5, "um", "test"), None)
    mixed.write_csv(tmp_path / "a.csv")
    with (tmp_path / "a.csv").open() as file:
        first, second = csv.DictReader(file)
    assert first["perimeter_um"]
    assert second["perimeter_um"] == ""
    assert first["perimeter_px"] == second["perimeter_px"]
    assert (second["unit"], second["unit_source"]) == ("px", "not known")


def test_other_units_are_converted_to_the_first() -> None:
    both = table(Scale(0.5, "um", "a"), Scale(500, "nm", "b"))
    column = next(each for each in both.columns if each.name == "area_um2")
    first, second = (column.value(row) for row in both.rows())
    assert first == pytest.approx(second)


def test_csv_and_parquet_agree_and_say_what_columns_mean(tmp_path: Path) -> None:
    known = table(Scale(0.5, "um", "test"), None)
    known.write_csv(tmp_path / "a.csv")
    known.write_parquet(tmp_path / "a.parquet")
    write_dictionary(tmp_path / "columns.csv", [known])
    read = parquet.read_table(tmp_path / "a.parquet")
    with (tmp_path / "a.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert read.column_names == list(rows[0])
    assert read["area_px"].to_pylist() == [int(row["area_px"]) for row in rows]
    assert read["area_um2"].to_pylist()[0] == pytest.approx(float(rows[0]["area_um2"]))
    assert read["touches_border"].to_pylist() == [False, False]
    assert read.schema.field("area_um2").metadata[b"unit"] == b"um2"
    with (tmp_path / "columns.csv").open() as file:
        explained = {row["column"]: row for row in csv.DictReader(file)}
    assert set(explained) == set(read.column_names)
    assert all(row["meaning"] for row in explained.values())
    assert explained["area_um2"]["unit"] == "um2"


def test_a_table_without_objects_has_its_columns(tmp_path: Path) -> None:
    scale = Scale(0.5, "um", "test")
    groups = ("size", "intensity")

    def tables(radius: float) -> tuple[Table, Table]:
        found = measure(scene_of(disc(radius)), MeasureOptions(groups=groups, scale=scale))
        return tables_of(lambda: iter(found.objects), lambda: iter(found.photos), groups)

    (empty, _), (full, _) = tables(0), tables(50)
    assert {column.name for column in full.columns if "intensity" not in column.name} == names(empty)
    for name, each in (("empty", empty), ("full", full)):
        each.write_csv(tmp_path / f"{name}.csv")
        each.write_parquet(tmp_path / f"{name}.parquet")
    assert (tmp_path / "empty.csv").read_text().startswith("photo,class,id,")
    schema, expected = (parquet.read_schema(tmp_path / f"{name}.parquet") for name in ("empty", "full"))
    assert {name: schema.field(name).type for name in schema.names} == {
        name: expected.field(name).type for name in expected.names if "intensity" not in name
    }


def test_the_dictionary_is_about_the_table(tmp_path: Path) -> None:
    found = measure(scene_of(disc(50)), MeasureOptions(groups=()))
    write_dictionary(tmp_path / "columns.csv", tables_of(lambda: iter(found.objects), lambda: iter(found.photos), ()))
    with (tmp_path / "columns.csv").open() as file:
        meanings = {(row["table"], row["column"]): row["meaning"] for row in csv.DictReader(file)}
    assert meanings["objects", "area_px"].startswith("area of the object")
    assert meanings["photos", "area_px"].startswith("area of all objects")
    assert meanings["photos", "score"] == "probability that the class is in the photo"


def test_no_cell_is_a_formula(tmp_path: Path) -> None:
    rows: list[Row] = [{"photo": "=1+2.png", "class": "@cmd()", "count": 3, "score": -0.5}]
    Table.of("photos", lambda: iter(rows)).write_csv(tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text().splitlines()[1] == "'=1+2.png,'@cmd(),3,-0.5"
