from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emat.training.options import TrainingOptions, as_plain, config_text, from_plain, read_config, write_config
from tests.raises import raises_code

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
    ("content", "code"),
    [
        ("epoch: 3", "unknown-option"),
        ("epochs: many", "unclear-option"),
        ("epochs: 2.5", "unclear-option"),
        ("flip: 1", "unclear-option"),
        ("epochs: true", "unclear-option"),
        ("epochs: .inf", "unclear-option"),
        ("cache_memory: .inf", "bad-number"),
        ("presence_weight: .nan", "bad-number"),
        ("data: 5", "unclear-option"),
        ("data: [1]", "unclear-option"),
        ("- 1", "unclear-option"),
        ("a: [", "bad-syntax"),
        ("epochs: 0", "bad-number"),
        ("schedule: wild", "unknown-choice"),
        ("ema: 1.0", "bad-number"),
        ("seed: -1", "bad-number"),
    ],
)
def test_what_a_file_gets_wrong_is_reported(content: str, code: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(content)
    with raises_code(code):
        from_plain(read_config(path))


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with raises_code("no-such-file"):
        read_config(tmp_path / "none.yaml")


def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the folder should be")
    with raises_code("cannot-write", "run.yaml"):
        write_config(tmp_path / "run" / "run.yaml", TrainingOptions())


def test_a_large_seed_stays_what_it_is() -> None:
    assert from_plain({"seed": 2**53 + 1}).seed == 2**53 + 1
    assert from_plain({"seed": "1e3"}).seed == 1000


def test_the_batch_is_shared_by_all_processes_or_given_to_each() -> None:
    """The paper's text and the published configuration differ; both can be trained."""
    shared = TrainingOptions(devices=3)
    assert shared.tasks_per_step == 9
    assert replace(shared, batch_per_process=True).tasks_per_step == 27
    assert replace(shared, batch_per_process=True, nodes=2).tasks_per_step == 54
