from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emat.errors import EmatError
from emat.training.options import TrainingOptions, as_plain, config_text, from_plain, read_config, write_config

pytest.importorskip("yaml")

names = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=12)


@given(
    options=st.builds(
        TrainingOptions,
        data=st.lists(names.map(Path), max_size=3).map(tuple),
        exclude_classes=st.lists(names, max_size=2).map(tuple),
        fold=st.none() | st.integers(0, 3),
        lr=st.none() | st.floats(1e-9, 10),
        ema=st.floats(0, 0.9999),
        flip=st.booleans(),
        folds=st.none() | names,
        out=st.none() | names.map(Path),
        epochs=st.integers(1, 100),
    )
)
def test_options_come_back_from_a_file(options: TrainingOptions, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "run.yaml"
    write_config(path, options)
    assert from_plain(read_config(path)) == options
    assert from_plain(as_plain(options)) == options


def test_a_file_names_only_what_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("lr: 1e-3\ndata: pets\nepochs: 5\n")
    assert from_plain(read_config(path)) == TrainingOptions(lr=0.001, data=(Path("pets"),), epochs=5)
    path.write_text("exclude_classes: 3\n")
    assert from_plain(read_config(path)) == TrainingOptions(exclude_classes=("3",))
    path.write_text("")
    assert from_plain(read_config(path)) == TrainingOptions()


def test_every_option_is_written_with_its_help() -> None:
    text = config_text(TrainingOptions())
    assert "# Number of epochs.\nepochs: 80\n" in text
    assert text.count("#") >= len(as_plain(TrainingOptions()))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("epoch: 3", "no option 'epoch'"),
        ("epochs: many", "epochs is 'many'"),
        ("epochs: 2.5", "epochs is 2.5"),
        ("flip: 1", "flip is 1"),
        ("epochs: true", "epochs is True"),
        ("epochs: .inf", "epochs is inf"),
        ("cache_memory: .inf", "cache memory is inf; it must be finite"),
        ("presence_weight: .nan", "presence weight is nan"),
        ("data: 5", "data is 5, which is not of the type Path"),
        ("data: [1]", "data is 1, which is not of the type Path"),
        ("- 1", "must hold options"),
        ("a: [", "is not YAML"),
        ("epochs: 0", "epochs is 0; it must be above 0"),
        ("schedule: wild", "choose constant or cosine or one-cycle"),
        ("ema: 1.0", "ema is 1.0"),
        ("seed: -1", "seed is -1"),
    ],
)
def test_what_a_file_gets_wrong_is_reported(content: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(content)
    with pytest.raises(EmatError, match=told):
        from_plain(read_config(path))


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(EmatError, match="cannot be read"):
        read_config(tmp_path / "none.yaml")


def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the folder should be")
    with pytest.raises(EmatError, match=r"run.yaml cannot be written"):
        write_config(tmp_path / "run" / "run.yaml", TrainingOptions())


def test_a_large_seed_stays_what_it_is() -> None:
    assert from_plain({"seed": 2**53 + 1}).seed == 2**53 + 1
    assert from_plain({"seed": "1e3"}).seed == 1000
