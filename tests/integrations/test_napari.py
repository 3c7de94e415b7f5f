"""The widget for napari: labels in, labels out. What needs napari itself is skipped without it, as in CI."""

from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from emat.images import read_photo
from emat.integrations.napari import as_photo, find_labels
from tests.raises import raises_code
from tests.scale.conftest import photo_of


def painted() -> "np.ndarray[tuple[int, int], np.dtype[np.int32]]":
    labels = np.zeros((48, 64), np.int32)
    labels[4:24, 6:28] = 5
    return labels


def test_labels_keep_their_numbers(tiny_head: Path) -> None:
    found = find_labels(photo_of(0), painted(), photo_of(3), model=str(tiny_head))
    assert found.shape == (48, 64)
    assert found.dtype == np.int32
    assert set(np.unique(found)) <= {0, 5}


def test_nothing_painted_is_said(tiny_head: Path) -> None:
    with raises_code("empty-mask"):
        find_labels(photo_of(0), np.zeros((48, 64), np.int32), photo_of(3), model=str(tiny_head))


def test_any_range_of_values_is_a_photo() -> None:
    deep = np.linspace(100, 900, 12 * 10).reshape(12, 10)
    assert as_photo(deep).shape == (12, 10, 3)
    assert (as_photo(deep).min(), as_photo(deep).max()) == (0, 255)
    assert np.array_equal(as_photo(deep.astype(np.int32)), as_photo(np.floor(deep)))
    deep = deep.astype(np.uint16)
    deep[0, 0] = 60_000  # one hot pixel, which the stretch of files leaves out
    assert np.array_equal(as_photo(deep), read_photo(deep))


def test_napari_reads_the_manifest_and_runs_the_widget(tiny_head: Path) -> None:
    npe2 = pytest.importorskip("npe2", reason="napari is not installed; it is not part of `all`")
    pytest.importorskip("magicgui", reason="napari is not installed; it is not part of `all`")
    manifest = npe2.PluginManifest.from_file(str(resources.files("emat.integrations") / "napari.yaml"))
    (command,) = manifest.contributions.commands
    function = command.python_name.rpartition(":")[2]
    assert function == find_labels.__name__
    (widget,) = manifest.contributions.widgets
    assert widget.command == command.id


def test_a_window_of_napari_opens_the_widget_and_its_layers_go_in_and_out(
    tiny_head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window has no OpenGL, so that layers are in napari's model of a viewer and not drawn."""
    monkeypatch.setenv("QT_QPA_PLATFORM", "offscreen")
    napari = pytest.importorskip("napari", reason="napari is not installed; it is not part of `all`")
    pytest.importorskip("qtpy.QtWidgets", reason="napari needs Qt for a window", exc_type=ImportError)
    window = napari.Viewer(show=False)
    try:
        _, widget = window.window.add_plugin_dock_widget("emat", "Find painted labels")
        assert [part.name for part in widget][:5] == ["example", "painted", "photo", "model", "learn"]
    finally:
        window.close()
    viewer = napari.components.ViewerModel()
    example, photo = (viewer.add_image(photo_of(number), rgb=True) for number in (0, 3))
    labels = viewer.add_labels(painted())
    found = viewer.add_labels(find_labels(example.data, labels.data, photo.data, model=str(tiny_head)))
    assert set(np.unique(found.data)) <= {0, 5}
