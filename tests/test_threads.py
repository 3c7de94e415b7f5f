"""The number of threads: what the user says, or as many as there are cores to spare."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from emat.cli import main
from emat.threads import choose_threads
from tests.raises import raises_code


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EMAT_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("load", "count"), [(0.0, None), (0.4, None), (1.0, 7), (6.2, 2), (8.0, 1), (50.0, 1)])
def test_a_busy_machine_gets_fewer_threads_and_an_idle_one_what_pytorch_chooses(load: float, count: int | None) -> None:
    assert choose_threads(load=load, cores=8).count == count


def test_the_flag_goes_before_the_variable_and_both_before_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert choose_threads(load=9, cores=4) == choose_threads(load=0, cores=4)
    assert "OMP_NUM_THREADS" in choose_threads(load=9, cores=4).reason
    monkeypatch.setenv("EMAT_THREADS", "3")
    assert choose_threads(load=9, cores=4).count == 3
    assert choose_threads("2", load=9, cores=4).count == 2


@pytest.mark.parametrize("value", ["0", "-1", "x", "1" * 5000, "1.5", "100000"])
def test_what_is_no_number_of_threads_is_a_sentence(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMAT_THREADS", value)
    with raises_code("bad-number", "EMAT_THREADS"):
        choose_threads()
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--json"])
    assert ended.value.code == 2


def test_every_verb_takes_the_flag_and_the_doctor_says_why(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root), "EMAT_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "emat", "doctor", "--json", "--threads", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    report = json.loads(ended.stdout)
    assert (report["threads"], report["threads_reason"]) == (1, "as --threads says")
