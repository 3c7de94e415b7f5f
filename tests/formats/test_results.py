"""Several formats and tables from one run, one process at a time, and nothing lost."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from emat.formats.results import JOURNAL, ResultTable
from emat.formats.writing import open_writer, read_formats
from emat.outputs import UNFINISHED, WriteError
from tests.formats.label_maps import CLASSES, rich_label_map
from tests.raises import raises_code

PHOTO = np.full((20, 30, 3), 90, np.uint8)
SEVERAL = ("png", "coco", "labelme", "yolo", "overlay")


def files_in(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def rows_of(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_formats_that_are_written_together_are_as_if_written_alone(tmp_path: Path) -> None:
    expected: dict[str, bytes] = {}
    for format in SEVERAL:
        with open_writer(format, tmp_path / format, CLASSES) as writer:
            writer.write("x/a.jpg", rich_label_map(), PHOTO)
        expected |= files_in(tmp_path / format)
    with open_writer(",".join(SEVERAL), tmp_path / "together", CLASSES) as writer:
        writer.write("x/a.jpg", rich_label_map(), PHOTO)
    assert files_in(tmp_path / "together") == expected


def test_formats_are_checked() -> None:
    assert read_formats("png,csv", ["csv"]) == ("png", "csv")
    with raises_code("unknown-choice", "'gif'", "png"):
        read_formats("png,gif")
    with raises_code("given-twice"):
        read_formats("png,png")


def test_a_photo_cannot_take_the_name_of_a_file_for_all(tmp_path: Path) -> None:
    writer = open_writer("labelme,coco", tmp_path, CLASSES)
    with raises_code("same-output-name", "annotations.json"):
        writer.write("annotations.jpg", rich_label_map())


PROGRAM = """
import os, sys
from pathlib import Path
import numpy as np
from emat.formats.results import ResultTable
from emat.formats.writing import open_writer
out = Path(sys.argv[1])
table = ResultTable(out / "scores.csv", ["photo", "score"], "scores")
with open_writer("png", out, ["cat"], tables=[table]) as writer:
    for number in range(40):
        name = f"{number}.jpg"
        if name in writer.done():
            continue
        writer.write(name, np.ones((4, 4), np.uint8), rows={"scores": [[name, str(number)]]})
        print(number, flush=True)
        if number == int(sys.argv[2]):
            sys.stdin.readline()
            os._exit(9)
"""


def test_rows_survive_kills_and_a_second_writer_says_who_is_at_work(tmp_path: Path) -> None:
    for stop in (11, 25):
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path), str(stop)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as other:
            assert other.stdout is not None
            while other.stdout.readline().strip() != str(stop):
                assert other.poll() is None
            with raises_code("output-in-use", str(other.pid)):
                open_writer("png", tmp_path, ["cat"])
            other.communicate("go\n")
        assert other.returncode == 9
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path), "-1"], check=True, capture_output=True)
    rows = rows_of(tmp_path / "scores.csv")
    assert rows == [["photo", "score"], *([f"{n}.jpg", str(n)] for n in range(40))]
    assert len(list((tmp_path / "masks").iterdir())) == 40
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], "no journal and no lock is left"


def test_an_interrupted_run_leaves_the_rows_so_far(tmp_path: Path) -> None:
    table = ResultTable(tmp_path / "far" / "scores.csv", ["photo", "score"], "scores")

    def interrupted() -> None:
        with open_writer("png", tmp_path / "out", CLASSES, tables=[table]) as writer:
            writer.write("a.jpg", rich_label_map(), rows={"scores": [["a.jpg", "0.5"]]})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert rows_of(table.path) == [["photo", "score"], ["a.jpg", "0.5"]]


def slide_rows(
    table: ResultTable, rows: list[str], state: str, formats: list[str], *, killed: bool = False
) -> set[str]:
    """Write a slide's rows one after the other, then a photo; returns what was done before."""
    writer = open_writer(formats, table.path.parent, ["cat"], tables=[table])
    done = writer.done(lambda name: state if name == "s.tif" else None)
    if "s.tif" not in done:
        for row in rows:
            writer.write_rows("s.tif", {"t": [["s.tif", row]]})
        bands = [np.ones((4, 4), np.uint8)]
        writer.write_bands("s.tif", (4, 4), bands, lambda: {"t": [["s.tif", "last"]]}, state)
    if killed:
        writer._journal.leave()
    else:
        writer.close()
    return done


@pytest.mark.parametrize("formats", [["png"], []])
def test_the_rows_of_a_slide_are_those_of_the_slide_that_is_there_now(tmp_path: Path, formats: list[str]) -> None:
    table = ResultTable(tmp_path / "t.csv", ["photo", "row"], "t")
    slide_rows(table, ["1", "2", "3"], "old", formats, killed=True)
    assert slide_rows(table, ["1"], "old", formats, killed=True) == {"s.tif"}, "the same slide is done"
    assert slide_rows(table, ["4"], "new", formats) == set()
    assert rows_of(table.path)[1:] == [["s.tif", "4"], ["s.tif", "last"]]


def test_rows_of_a_slide_that_was_not_completed_do_not_count(tmp_path: Path) -> None:
    table = ResultTable(tmp_path / "t.csv", ["photo", "row"], "t")
    writer = open_writer("png", tmp_path, ["cat"], tables=[table])
    writer.write_rows("s.tif", {"t": [["s.tif", "1"]]})
    writer.write("a.png", np.ones((4, 4), np.uint8), rows={"t": [["a.png", "1"]]})
    writer.leave()
    assert rows_of(table.path)[1:] == [["a.png", "1"]]
    slide_rows(table, ["1", "2"], "state", ["png"])
    assert rows_of(table.path)[1:] == [["a.png", "1"], ["s.tif", "1"], ["s.tif", "2"], ["s.tif", "last"]]


def test_tables_need_no_masks(tmp_path: Path) -> None:
    table = ResultTable(tmp_path / "scores.csv", ["photo"], "scores")
    with open_writer([], tmp_path, CLASSES, tables=[table]) as writer:
        writer.write("a.jpg", rich_label_map(), rows={"scores": [["a.jpg"]]})
    assert list(files_in(tmp_path)) == ["scores.csv"]


def test_what_killed_runs_left_unfinished_is_removed(tmp_path: Path) -> None:
    program = f"""
import os, sys
from pathlib import Path
from emat.outputs import whole_file
with whole_file(Path({str(tmp_path)!r}) / "a.txt") as unfinished:
    unfinished.write_text("half")
    os._exit(9)
"""
    subprocess.run([sys.executable, "-c", program], check=False)
    assert [path.name.startswith(UNFINISHED) for path in tmp_path.iterdir()] == [True]
    foreign = tmp_path / f"{UNFINISHED}elsewhere-1-1"
    foreign.touch()  # of another machine, whose processes are not seen here
    whole = "from pathlib import Path; from emat.outputs import write_text; write_text(Path({!r}), '')"
    subprocess.run([sys.executable, "-c", whole.format(str(tmp_path / "b.txt"))], check=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [foreign.name, "b.txt"]


def test_a_full_disk_is_one_sentence_and_keeps_what_was_written(tmp_path: Path) -> None:
    program = f"""
import resource, sys
from pathlib import Path
import numpy as np
from emat.outputs import WriteError
from emat.formats.writing import open_writer
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    with open_writer("coco", Path({str(tmp_path)!r}), ["cat"]) as writer:
        for number in range(100):
            writer.write(f"{{number}}.jpg", np.ones((4, 4), np.uint8))
except WriteError as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert "cannot be written" in ended.stdout
    assert ended.stderr == ""
    done = open_writer("coco", tmp_path, ["cat"]).done()
    assert len(done) >= 10, "what fitted is kept"


def test_a_name_that_is_too_long_or_not_utf8_concerns_its_photo_alone(tmp_path: Path) -> None:
    with open_writer("png", tmp_path, CLASSES) as writer:
        with raises_code("bad-file-name") as caught:
            writer.write("x" * 300 + ".jpg", rich_label_map())
        assert not isinstance(caught.value, WriteError)
        with raises_code("bad-file-name", "b'caf\\xe9.jpg'"):
            writer.write(os.fsdecode(b"caf\xe9.jpg"), rich_label_map())
        writer.write("a.jpg", rich_label_map())
    assert (tmp_path / "masks" / "a.png").is_file()


@pytest.mark.parametrize("change", ["cut", "other JSON"])
def test_a_damaged_line_of_a_journal_costs_one_photo(tmp_path: Path, change: str) -> None:
    writer = open_writer("coco", tmp_path, CLASSES)
    for name in ("a.jpg", "b.jpg"):
        writer.write(name, rich_label_map())
    writer.leave()
    lines = (tmp_path / JOURNAL).read_text().splitlines(keepends=True)
    damaged = lines[1][:19] + "\n" if change == "cut" else lines[1].replace('"a.jpg"', "[7]")
    assert damaged != lines[1]
    (tmp_path / JOURNAL).write_text(lines[0] + damaged + lines[2])
    with open_writer("coco", tmp_path, CLASSES) as writer:
        assert writer.done() == {"b.jpg"}
        writer.write("a.jpg", rich_label_map())
    content = json.loads((tmp_path / "annotations.json").read_text())
    assert [photo["file_name"] for photo in content["images"]] == ["b.jpg", "a.jpg"]


def test_no_cell_of_a_table_is_a_formula(tmp_path: Path) -> None:
    table = ResultTable(tmp_path / "t.csv", ["photo", "=cmd(): present"], "t")
    with open_writer([], tmp_path, ["=cmd()"], tables=[table]) as writer:
        writer.write("+a.png", np.zeros((2, 2), np.uint8), rows={"t": [["+a.png", "-0.5"]]})
    assert (tmp_path / "t.csv").read_text().splitlines() == ["photo,'=cmd(): present", "'+a.png,-0.5"]
