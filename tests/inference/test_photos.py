"""Photos: which ones a command line names."""

from pathlib import Path

import pytest
from PIL import Image

from emat.inference.photos import find_photos
from tests.raises import raises_code


@pytest.fixture
def album(tmp_path: Path) -> Path:
    for name in ("a.jpg", "b.PNG", "deep/c.jpg", "deep/notes.txt", ".hidden/d.jpg", "out/e.jpg"):
        path = tmp_path / "album" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(path) if path.suffix != ".txt" else path.write_text("no photo")
    return tmp_path / "album"


def test_a_folder_gives_all_below_it_by_their_path_but_results(album: Path) -> None:
    assert [photo.name for photo in find_photos([str(album)], leave_out=album / "out")] == [
        "a.jpg",
        "b.PNG",
        "deep/c.jpg",
    ]


def test_photos_that_are_named_are_taken_also_from_the_folder_of_results(album: Path) -> None:
    for named in (album / "deep", album / "deep" / "c.jpg", album / "deep" / "*.jpg"):
        assert [photo.name for photo in find_photos([str(named)], leave_out=album)] == ["c.jpg"]
    assert "e.jpg" not in [photo.name for photo in find_photos([str(album / "**" / "*.jpg")], leave_out=album / "out")]
    for searched in (album, album / "*.jpg"):
        with raises_code("output-is-input"):
            find_photos([str(searched)], leave_out=album)


def test_files_and_patterns_give_names_and_nothing_twice(album: Path) -> None:
    found = find_photos([str(album / "a.jpg"), str(album / "**" / "*.jpg"), str(album / "a.jpg")])
    assert [photo.name for photo in found] == ["a.jpg", "c.jpg", "e.jpg"]


def test_a_missing_file_is_left_for_the_run_to_report(album: Path) -> None:
    assert [photo.name for photo in find_photos([str(album / "gone.jpg")])] == ["gone.jpg"]


def test_a_link_that_leads_nowhere_is_left_for_the_run_to_report(album: Path) -> None:
    (album / "gone.jpg").symlink_to(album / "nowhere.jpg")
    (album / "folder.jpg").mkdir()
    assert "gone.jpg" in [photo.name for photo in find_photos([str(album)])]
    assert "folder.jpg" not in [photo.name for photo in find_photos([str(album)])]


def test_nothing_to_predict_is_an_error(album: Path) -> None:
    with raises_code("no-photos"):
        find_photos([str(album / "*.gif")])


def test_two_photos_of_one_name_are_refused(album: Path) -> None:
    Image.new("RGB", (4, 4)).save(album / "a.png")
    with raises_code("same-output-name", "a.jpg", "a.png"):
        find_photos([str(album)])
