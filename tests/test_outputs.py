"""A file is written whole or not at all, and a command writes over nothing that it reads or that emat did not write."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from emat.outputs import (
    RECORD,
    UNFINISHED,
    WriteError,
    check_output,
    claim_file,
    claim_folder,
    forget_claims,
    refuse_overwriting,
    whole_file,
    whole_folder,
    write_text,
)
from tests.raises import raises_code


@pytest.fixture(autouse=True)
def _no_claims_afterwards() -> None:
    forget_claims()


def test_what_emat_wrote_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    claim_folder(tmp_path)
    (tmp_path / "theirs.txt").write_text("precious")
    with raises_code("refuses-overwrite", "theirs.txt", kind=WriteError):
        write_text(tmp_path / "theirs.txt", "x")
    for text in ("one", "two"):
        write_text(tmp_path / "deep" / "ours.txt", text)
    forget_claims()
    claim_folder(tmp_path)  # another command
    write_text(tmp_path / "deep" / "ours.txt", "three")
    (tmp_path / "deep" / "ours.txt").write_text("corrected by hand")
    with raises_code("refuses-overwrite", kind=WriteError):
        refuse_overwriting(tmp_path / "deep" / "ours.txt")
    claim_folder(tmp_path, overwrite=True)
    for name in ("theirs.txt", "deep/ours.txt"):
        write_text(tmp_path / name, "x")
    assert (tmp_path / "theirs.txt").read_text() == "x"


def test_what_is_read_is_refused_also_if_emat_wrote_it_once(tmp_path: Path) -> None:
    claim_folder(tmp_path)
    write_text(tmp_path / "set" / "a.json", "{}")
    (tmp_path / "link.json").symlink_to(tmp_path / "set" / "a.json")
    for read in (tmp_path / "set" / "a.json", tmp_path / "set", tmp_path / "link.json"):
        for path in (tmp_path / "set" / "a.json", tmp_path / "link.json"):
            if read == tmp_path / "set" and path == tmp_path / "link.json":
                continue
            with raises_code("output-is-input"):
                claim_file(path, (".json",), reads=[read])
    assert (tmp_path / "set" / "a.json").read_text() == "{}"


def test_a_wrong_ending_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with raises_code("wrong-suffix", "--table", "a.png", ".csv"):
        claim_file(tmp_path / "new" / "a.png", (".csv",), flag="--table")
    assert list(tmp_path.iterdir()) == []
    claim_file(tmp_path / "a.CSV", (".csv",))


def test_a_damaged_record_costs_only_the_files_of_its_damaged_lines(tmp_path: Path) -> None:
    claim_folder(tmp_path)
    write_text(tmp_path / "a.txt", "a")
    with (tmp_path / RECORD).open("a") as file:
        file.write('["b.txt", "12\nnonsense\n[]\n{"a": 1}\n5\n')
    claim_folder(tmp_path)
    write_text(tmp_path / "a.txt", "b")


def test_what_a_killed_process_left_is_removed_also_where_the_next_one_does_not_write(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from emat.outputs import claim_folder, whole_file, whole_folder\n"
        "out = Path(sys.argv[1]); claim_folder(out)\n"
        "with whole_file(out / 'geojson' / 'a.json') as one, whole_folder(out / 'zarr' / 'a.zarr') as other:\n"
        "    one.write_text('half'); other.mkdir(); os._exit(9)"
    )
    for out in (tmp_path / "results", tmp_path / "elsewhere"):
        assert subprocess.run([sys.executable, "-c", program, str(out)], check=False).returncode == 9
    claim_folder(tmp_path / "results")
    with (tmp_path / "results" / RECORD).open("a") as file:
        for folder in ("../elsewhere/geojson/", f"{tmp_path}/elsewhere/zarr/"):
            file.write(json.dumps([folder, ""]) + "\n")
    write_text(tmp_path / "results" / "coco.json", "{}")
    assert not list((tmp_path / "results").rglob(f"{UNFINISHED}*"))
    assert len(list((tmp_path / "elsewhere").rglob(f"{UNFINISHED}*"))) == 2  # which are none of its business


def test_nothing_is_recorded_where_nothing_is_claimed(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "a")
    write_text(tmp_path / "a.txt", "b")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_failure_leaves_the_file_as_it_was_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "before")
    with suppress(KeyboardInterrupt), whole_file(path) as unfinished:
        unfinished.write_text("half")
        raise KeyboardInterrupt
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]
    assert path.read_text() == "before"


def test_folders_are_made_and_what_stands_in_the_way_is_named(tmp_path: Path) -> None:
    write_text(tmp_path / "x" / "y" / "a.txt", "é")
    assert (tmp_path / "x" / "y" / "a.txt").read_bytes() == "é".encode()
    with raises_code("cannot-write", "b.txt"):
        write_text(tmp_path / "x" / "y" / "a.txt" / "b.txt", "")
    with raises_code("cannot-write"):
        write_text(tmp_path / "x", "a folder of that name is there")


def test_output_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    check_output(tmp_path / "new" / "a.json")
    assert (tmp_path / "new").is_dir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "new", tmp_path / "file" / "a.json"):
        with raises_code("cannot-write"):
            check_output(path)


def test_a_folder_that_counts_as_a_file_is_replaced_only_if_emat_wrote_it(tmp_path: Path) -> None:
    claim_folder(tmp_path)
    (tmp_path / "theirs.zarr").mkdir()
    (tmp_path / "theirs.zarr" / "0").write_text("precious")
    for _ in range(2):
        with whole_folder(tmp_path / "ours.zarr") as unfinished:
            unfinished.mkdir()
            (unfinished / "0").write_text("x")
    with pytest.raises(WriteError, match=r"theirs.zarr is there already"), whole_folder(tmp_path / "theirs.zarr"):
        raise AssertionError
    (tmp_path / "ours.zarr" / "0").write_text("corrected")
    with pytest.raises(WriteError, match="is not as emat wrote it"), whole_folder(tmp_path / "ours.zarr"):
        raise AssertionError
    with suppress(KeyboardInterrupt), whole_folder(tmp_path / "new.zarr") as unfinished:
        unfinished.mkdir()
        raise KeyboardInterrupt
    assert sorted(path.name for path in tmp_path.iterdir()) == [RECORD, "ours.zarr", "theirs.zarr"]
    assert (tmp_path / "theirs.zarr" / "0").read_text() == "precious"


def test_half_a_line_of_the_record_swallows_no_other(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text('["a.txt", "12')  # the disk was full
    for _ in range(2):
        claim_folder(tmp_path)
        write_text(tmp_path / "b.txt", "b")


def test_a_pipe_in_place_of_the_record_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / RECORD)
    (tmp_path / "a.txt").write_text("precious")
    claim_folder(tmp_path)
    with pytest.raises(WriteError):
        write_text(tmp_path / "a.txt", "x")


def test_a_page_may_name_files_whose_names_are_not_utf8(tmp_path: Path) -> None:
    write_text(tmp_path / "page.html", "caf\udce9.jpg", errors="replace")
    assert (tmp_path / "page.html").read_text() == "caf?.jpg"
