import numpy as np

from emat.recent import Recent


def photo() -> np.ndarray:
    return np.zeros((2, 3, 3), np.uint8)


def test_a_value_is_computed_once_for_a_photo_and_a_setting() -> None:
    asked: list[str] = []

    def compute() -> str:
        asked.append("computed")
        return "value"

    recent = Recent[str](100, len)
    first, same_content = photo(), photo()
    for shown, setting in ((first, 400), (first, 400), (first, 800), (same_content, 400)):
        assert recent.get(shown, compute, setting) == "value"
    assert len(asked) == 3


def test_what_was_used_longest_ago_is_forgotten_first() -> None:
    recent = Recent[str](10, len)
    first, second, third = photo(), photo(), photo()
    for shown in (first, second, first, third):  # two values of five bytes have room
        recent.get(shown, lambda: "early")
    assert [recent.get(shown, lambda: "later") for shown in (first, third, second)] == ["early", "early", "later"]


def test_the_last_value_is_kept_even_if_it_is_too_large() -> None:
    recent, shown = Recent[str](1, len), photo()
    recent.get(shown, lambda: "early")
    assert recent.get(shown, lambda: "later") == "early"
