"""The forms of the network: EMAT, CST and the steps between them, which differ in sizes alone."""

from dataclasses import dataclass

from emat.errors import EmatError
from emat.model.encoding import Window

WIDTH_MULTIPLE = 16  # eight attention heads share half of a layer's width


@dataclass(frozen=True)
class Form:
    """What distinguishes the members of the family (paper, Sec. 4 and Tab. 3)."""

    support_grid: int  # side; t_s = side² + 1
    windows: tuple[Window, Window]  # downscaling of the two layers
    widths: tuple[int, int]  # of the two layers' outputs; the branches use the second and its half
    class_token: bool = True


@dataclass(frozen=True)
class Shape:
    """Sizes of a network that may differ from the published ones; None keeps what its form has.

    A backbone with few tokens gains nothing from a support grid that is finer than its own, and every halving of the
    grid's side makes the network about four times as fast.
    """

    support_grid: int | None = None  # side
    widths: tuple[int, int] | None = None  # of the two layers' outputs
    channels: tuple[int, int] | None = None  # of the backbone's channels: the first, and the one after the last

    def applied_to(self, form: Form) -> Form:
        """Return `form` with these sizes.

        Raises:
            EmatError: If the grid cannot be cut into the form's windows, or a width into attention heads.
        """
        first, second = form.windows
        side = form.support_grid if self.support_grid is None else self.support_grid
        pool, rest = divmod(side, first.side * second.stride)
        if pool < 1 or rest:
            raise EmatError(
                f"a support grid of {side} x {side} does not fit this network; its side must be a multiple of "
                f"{first.side * second.stride}"
            )
        widths = self.widths or form.widths
        if any(width < WIDTH_MULTIPLE or width % WIDTH_MULTIPLE for width in widths):
            raise EmatError(f"widths are {widths[0]} and {widths[1]}; both must be multiples of {WIDTH_MULTIPLE}")
        return Form(side, (first, Window(second.stride, pool)), widths, form.class_token)


PUBLISHED_SHAPE = Shape()
_LEARNED = (Window(stride=2, pool=1), Window(stride=2, pool=5))
_SLIM, _WIDE = (64, 32), (32, 128)

FORMS: dict[str, Form] = {
    "emat": Form(20, _LEARNED, _SLIM),
    "emat-s": Form(20, _LEARNED, _SLIM, class_token=False),
    "cst": Form(12, (Window(1, 4), Window(1, 3)), _WIDE),
    "cst-large": Form(18, (Window(1, 3), Window(1, 6)), _WIDE),
    "emat-me": Form(20, (Window(1, 2), Window(1, 10)), _WIDE),
    "emat-me-ld": Form(20, _LEARNED, _WIDE),
}
