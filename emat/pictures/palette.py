"""The colours of classes on photos, and of ways and lines in figures on white paper."""

from typing import TypeAlias

from emat.images import VOID

Colour: TypeAlias = tuple[int, int, int]

# The colours of Okabe and Ito, which can be distinguished with any kind of colour vision.
PRINT_COLOURS: tuple[Colour, ...] = (
    (230, 159, 0),
    (86, 180, 233),
    (0, 158, 115),
    (204, 121, 167),
    (213, 94, 0),
    (0, 114, 178),
    (240, 228, 66),
)

WHITE, INK = (255, 255, 255), (33, 37, 41)

# Bright colours for photos, in an order in which neighbours differ much. Further classes get the same colours in
# lighter and then in darker shades; after that the colours repeat.
COLOURS = (
    (255, 176, 0), (30, 136, 229), (216, 27, 96), (0, 191, 165), (142, 68, 255), (255, 109, 0),
    (118, 255, 3), (0, 229, 255), (255, 82, 82), (124, 179, 66), (255, 128, 213), (161, 136, 127),
)  # fmt: skip
SHADES = ((0, 0.0), (255, 0.45), (0, 0.4))  # white or black, and its share
VOID_COLOUR = (210, 210, 210)


def colour_of(index: int) -> tuple[int, int, int]:
    """Return the colour of a class index in overlays."""
    if index == VOID:
        return VOID_COLOUR
    goal, share = SHADES[(index - 1) // len(COLOURS) % len(SHADES)]
    red, green, blue = (round(part + share * (goal - part)) for part in COLOURS[(index - 1) % len(COLOURS)])
    return red, green, blue
