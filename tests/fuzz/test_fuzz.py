"""A short run of the fuzzer, always with the same cases, and every case that once was a finding."""

import pytest

from tests.fuzz.kinds import KINDS
from tests.fuzz.run import cases_of, fuzz

# Seeds of cases that once failed, which the short run does not contain.
FOUND: list[tuple[str, int]] = [
    ("labelme", 13),
    ("arguments", 1095),
    ("arguments", 16),
    ("stacks", 1402),
    ("arguments", 480),
    ("photos", 59),
    ("photos", 2698),
    ("results", 128),
    ("results", 275),
    ("sessions", 112),
]


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_inputs_are_read_or_refused_in_one_line(kind: str) -> None:
    finding = fuzz(kind, 0, cases_of(kind, long=False))
    assert finding is None, finding


@pytest.mark.parametrize(("kind", "seed"), FOUND)
def test_what_was_found_once_stays_right(kind: str, seed: int) -> None:
    finding = fuzz(kind, seed, 1)
    assert finding is None, finding
