"""Of a dropped stack or video, the planes that one chooses become photos, and objects keep their numbers."""

import csv
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from emat.studio.examples import add_classes, add_planes, remove_stack
from emat.studio.export import export
from emat.studio.session import Session, StackFile
from emat.studio.session_json import load_session, save_session, state
from emat.studio.sessions import SharedMethods
from emat.studio.stacks import Choice, find_stack, leave_stack, preview, take_stack
from emat.studio.tracks import tracks_of
from tests.raises import raises_code
from tests.studio.clips import FRAMES, SIZE, frames, tiff, video
from tests.studio.conftest import RED, look, png, show

pytest.importorskip("av", reason="needs PyAV (the extra video)")
TWO_CHANNELS = np.stack([np.full((30, 40), value, np.uint8) for value in (200, 40)])


def only_stack(session: Session) -> StackFile:
    (found,) = session.stacks.values()
    return found


@pytest.fixture
def filmed(session: Session, tmp_path: Path) -> Session:
    """One example of red, and a video in which all frames were looked at."""
    add_classes(session, "red, blue")
    show(session, "a.png", RED, (90, 90, 90))
    assert take_stack(session, video(tmp_path / "clip.mp4"), "clip.mp4", "photos")
    stack = only_stack(session)
    assert len(list(add_planes(session, stack, Choice(0, FRAMES - 1)))) == FRAMES
    leave_stack(session, stack.key)
    look(session)
    return session


@pytest.mark.parametrize(
    ("data", "kind", "times", "depths", "channels"),
    [
        (tiff(np.zeros((3, 30, 40), np.uint8)), "pages", 3, 1, ()),
        (tiff(np.zeros((2, 5, 30, 40), np.uint8), "ZCYX"), "stack", 1, 2, tuple("01234")),
        (tiff(TWO_CHANNELS, "CYX", ("DAPI", "GFP")), "stack", 1, 1, ("DAPI", "GFP")),
        (tiff(np.zeros((4, 3, 30, 40), np.uint8), "TZYX"), "stack", 4, 3, ()),
    ],
)
def test_a_stack_waits_and_says_what_it_has(
    session: Session, data: bytes, kind: str, times: int, depths: int, channels: tuple[str, ...]
) -> None:
    assert take_stack(session, data, "../x.tif", "photos")
    found = only_stack(session)
    assert (found.kind, found.times, found.depths, found.channels) == (kind, times, depths, channels)
    assert found.name == "x.tif"
    assert state(session)["stacks"][0]["name"] == "x.tif"
    leave_stack(session, found.key)
    assert not found.path.exists()
    assert state(session)["stacks"] == []


def test_an_ordinary_photo_is_not_asked_about(session: Session) -> None:
    for data, name in ((png(RED), "a.png"), (tiff(np.zeros((30, 40), np.uint8)), "a.tif")):
        assert not take_stack(session, data, name, "photos")
    assert not list((session.folder / "stacks").glob("*/*"))


def test_what_is_no_video_is_named_without_its_path(session: Session) -> None:
    with raises_code("damaged-file") as raised:
        take_stack(session, b"no video", "clip.mp4", "photos")
    assert str(raised.value).startswith("clip.mp4 ")
    assert session.stacks == {}


def test_chosen_planes_and_channels_become_photos(session: Session) -> None:
    values = np.zeros((2, 4, 2, 30, 40), np.uint8)  # TZCYX
    values[1, 2, 0] = 180
    values[:, :, 1] = 70
    take_stack(session, tiff(values, "TZCYX", ("DAPI", "GFP")), "cells.tif", "photos")
    stack = only_stack(session)
    chosen = Choice(1, 1, depth=2, channels=("DAPI",))
    (query,) = add_planes(session, stack, chosen)
    assert (query.photo.name, query.photo.frame) == ("cells.png", None)
    assert (query.photo.pixels == 180).all(), "one channel is grey"
    assert np.asarray(Image.open(io.BytesIO(preview(session, stack, chosen)))).mean() == pytest.approx(180, abs=2)
    every = list(add_planes(session, stack, Choice(0, 1)))
    assert len(every) == 8
    assert [query.photo.name for query in every[:2]] == ["cells_z00000_t00000.png", "cells_z00001_t00000.png"]
    brightest = list(add_planes(session, stack, Choice(0, 1, project="max", channels=("DAPI",))))
    assert [int(query.photo.pixels.max()) for query in brightest] == [0, 180]
    for wrong, code in (
        (Choice(0, 2), "bad-number"),
        (Choice(1, 0), "bad-number"),
        (Choice(0, 1, depth=4), "page-outdated"),
        (Choice(0, 1, channels=("RFP",)), "no-such-channel"),
    ):
        with raises_code(code):
            list(add_planes(session, stack, wrong))


def test_pages_are_counted_from_one_and_become_drafts_in_step_2(session: Session) -> None:
    take_stack(session, tiff(frames()), "pages.tif", "examples")
    drafts = list(add_planes(session, only_stack(session), Choice(2, 6, every=2)))
    assert [draft.photo.name for draft in drafts] == [f"pages_t0000{page}.png" for page in (2, 4, 6)]
    assert list(session.drafts) == [draft.key for draft in drafts]
    assert (drafts[0].photo.pixels == frames()[1]).all()


def test_too_many_planes_are_refused(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emat.studio.stacks.MOST_PLANES", 3)
    take_stack(session, tiff(frames()), "pages.tif", "photos")
    with raises_code("too-many-photos"):
        list(add_planes(session, only_stack(session), Choice(1, 6)))
    assert len(list(add_planes(session, only_stack(session), Choice(1, 3)))) == 3
    with raises_code("no-such-photo"):
        find_stack(session, 999)


def test_objects_keep_their_numbers_from_frame_to_frame(filmed: Session) -> None:
    through = [tracks_of(filmed, query, query.photo.working)["red"] for query in filmed.queries.values()]
    assert [sorted(each.values()) for each in through] == [[1, 2], [1, 2], [1], [1, 3], [1, 3], [1, 3]]
    assert tracks_of(filmed, list(filmed.queries.values())[1], SIZE)["red"] == through[1], "asked again, in any order"


def test_tables_have_frame_numbers_and_tracks(filmed: Session, tmp_path: Path) -> None:
    with zipfile.ZipFile(export(filmed, ["objects", "measurements"], tmp_path / "out")) as archive:
        objects = list(csv.DictReader(io.StringIO(archive.read("objects.csv").decode())))
        measured = list(csv.DictReader(io.StringIO(archive.read("measured/objects.csv").decode())))
    assert [(row["photo"], row["frame"], row["id"]) for row in objects[:3]] == [
        ("clip.mp4", "0", "1"),
        ("clip.mp4", "0", "2"),
        ("clip.mp4", "1", "1"),
    ]
    upper = [row for row in objects if row["id"] == "1"]
    assert [int(row["frame"]) for row in upper] == list(range(FRAMES))
    assert np.diff([float(row["centroid_x"]) for row in upper]) == pytest.approx(6, abs=1.5)
    assert [(row["photo"], row["t"], row["track"]) for row in measured] == [
        (row["photo"], row["frame"], row["id"]) for row in objects
    ]


def test_frames_survive_a_restart_and_go_together(filmed: Session) -> None:
    save_session(filmed)
    methods = SharedMethods(filmed.segmenter)
    again = load_session(filmed.folder, methods.bare, lambda _: filmed.segmenter)
    assert [query.photo.frame for query in again.queries.values()] == [q.photo.frame for q in filmed.queries.values()]
    stack = next(iter(filmed.queries.values())).photo.frame
    assert stack is not None
    remove_stack(filmed, stack.stack)
    assert not filmed.queries
    assert not list((filmed.folder / "photos").iterdir())


def test_photos_without_frames_have_no_column_of_them(answered: Session, tmp_path: Path) -> None:
    with zipfile.ZipFile(export(answered, ["objects"], tmp_path / "out")) as archive:
        header = archive.read("objects.csv").decode().splitlines()[0]
    assert "frame" not in header
