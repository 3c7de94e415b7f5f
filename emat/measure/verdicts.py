"""Verdicts: OK or NOT OK by conditions on what was measured, and how often an OK may be wrong.

A condition is `crack.area == 0` or `crack.width_max.max <= 0.3mm`. A class has count, area, share and score; every
column of the table of objects can be asked for with max, min, mean or sum behind it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from emat.errors import EmatError
from emat.measure.properties import AREA, LENGTH, Row, column_of
from emat.measure.units import Scale

PIXEL, PERCENT = "px", "%"

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
OF_CLASS = ("count", "area", "share", "score", "share_within", "area_within", "count_at_border")
OVER_OBJECTS: dict[str, Callable[[Sequence[float]], float]] = {
    "max": max, "min": min, "sum": sum, "mean": lambda values: sum(values) / len(values),
}  # fmt: skip
CONDITION = re.compile(
    r"\s*(?P<what>.+?)\s*(?P<operator>==|!=|<=|>=|<|>)\s*(?P<value>-?(?:\d+(?:\.\d*)?|\.\d+))\s*"
    r"(?P<unit>%|px|(?:nm|um|µm|μm|mm|cm|m|km)(?:2|²)?)?\s*"
)
CERTAINTY = 0.95  # of the interval around a share of few examples


@dataclass(frozen=True)
class Condition:
    """What a photo must meet to be OK."""

    text: str
    class_name: str
    column: str
    over_objects: str | None  # of OVER_OBJECTS
    operator: str
    value: float
    unit: str | None  # of a length or an area, or PIXEL; None if nothing was said

    @classmethod
    def read(cls, text: str, classes: Sequence[str]) -> Condition:
        """Read what --accept says.

        Args:
            text: Such as `crack.area <= 5mm2`.
            classes: The classes that there are.

        Raises:
            EmatError: It is not a condition, or is about a class or a column that does not exist.

        >>> Condition.read("defect.count <= 2", ["defect"]).value
        2.0
        """
        match = CONDITION.fullmatch(text)
        if match is None:
            raise EmatError(
                "unclear-option",
                f"--accept is {text!r}; write it as in 'crack.area == 0' or 'crack.width_max.max <= 0.3mm'",
            )
        names = [name for name in classes if match["what"].startswith(f"{name}.")]
        if not names:
            raise EmatError(
                "unknown-class", f"--accept {text!r} names no class; it must begin with one of {', '.join(classes)}"
            )
        name = max(names, key=len)
        column, dot, over = match["what"][len(name) + 1 :].partition(".")
        if dot and over not in OVER_OBJECTS:
            raise EmatError(
                "unknown-choice", f"--accept {text!r} ends in {over!r}; it must be one of {', '.join(OVER_OBJECTS)}"
            )
        if not dot and column not in OF_CLASS:
            raise EmatError(
                "unknown-choice",
                f"--accept {text!r}: a class has {', '.join(OF_CLASS)}; for a column of the objects, add max, min, "
                f"mean or sum, as in {name}.{column}.max",
            )
        written = match["unit"] or ""
        unit = written.rstrip("2²").replace("µ", "u").replace("μ", "u") if written not in ("", PERCENT) else None
        condition = cls(text, name, column, over or None, match["operator"], float(match["value"]), unit)
        kind = condition.kind
        kinds = {
            "": (kind,),
            PERCENT: (PERCENT,),
            PIXEL: (LENGTH, AREA, PIXEL),
        }.get(written, (AREA if written.endswith(("2", "²")) else LENGTH,))
        if kind not in kinds:
            raise EmatError("unknown-unit", f"--accept {text!r}: {column} is not measured in {written}")
        return condition

    @property
    def kind(self) -> str:
        """LENGTH, AREA, or something else."""
        try:
            return column_of(self.column).kind
        except KeyError:
            raise EmatError(
                "unknown-column", f"--accept {self.text!r}: there is no column {self.column!r}; see columns.csv"
            ) from None

    def holds(self, objects: Sequence[Row], photos: Sequence[Row], scale: Scale | None, magnified: float = 1.0) -> bool:
        """Whether a photo meets the condition.

        One without objects of the class meets every upper limit. What is not known meets no condition, such as the
        share of a leaf on a photo without one.

        Args:
            objects: The rows of its objects, in pixels.
            photos: The rows of its classes, in pixels.
            scale: The size of its pixels.
            magnified: How many pixels of the photo a pixel of the rows is wide, if they were measured on a small copy.

        Raises:
            EmatError: The condition has a unit and the photo has none, or only the photo has one, or the column was not
                measured.
        """
        power = {LENGTH: 1, AREA: 2}.get(self.kind, 0)
        measured = self._measured(objects, photos)
        if scale is not None:
            self.check_unit(scale.unit)
        if measured is None:
            return False
        value = measured * magnified**power
        if self.unit not in (None, PIXEL):
            if scale is None:
                raise EmatError(
                    "unknown-pixel-size",
                    f"--accept {self.text!r} has a unit, but the size of a pixel is not known; use px",
                )
            value *= scale.in_unit(str(self.unit)).side ** power
        return OPERATORS[self.operator](value, self.value)

    def check_unit(self, unit: str) -> None:
        """Refuse a length or an area without a unit where tables are in a real one; nothing is nothing in all units.

        Raises:
            EmatError: It could be meant in pixels or in the unit.
        """
        if self.unit is None and self.value and self.kind in (LENGTH, AREA):
            number, square = f"{self.value:g}", "2" if self.kind == AREA else ""
            raise EmatError(
                "unclear-option",
                f"--accept {self.text!r} has no unit, and the photos are measured in {unit}; write "
                f"{number}{unit}{square} or {number}px",
            )

    def _measured(self, objects: Sequence[Row], photos: Sequence[Row]) -> float | None:
        if self.over_objects is None:
            row = next(photo_row for photo_row in photos if photo_row["class"] == self.class_name)
            value = row.get(self.column)
            return float(value) if isinstance(value, (int, float)) else None
        own = [object_row for object_row in objects if object_row["class"] == self.class_name]
        values = [object_row[self.column] for object_row in own if self.column in object_row]
        if own and not values:
            raise EmatError(
                "unknown-column",
                f"--accept {self.text!r}: {self.column} is not measured; add its group to --properties",
            )
        numbers = [float(value) for value in values if isinstance(value, (int, float))]
        return OVER_OBJECTS[self.over_objects](numbers) if numbers else 0.0


@dataclass(frozen=True)
class Confidence:
    """How often photos that are not OK were called OK, on examples that were left out.

    Attributes:
        examples: How many were left out.
        not_ok: How many of them are not OK by their own masks.
        false_ok: How many of those were called OK.
        false_alarms: How many that are OK were called not OK.
    """

    examples: int
    not_ok: int
    false_ok: int
    false_alarms: int

    @classmethod
    def of(cls, verdicts: Sequence[tuple[bool, bool]]) -> Confidence:
        """Count pairs of what is so and what was called so; True is OK.

        >>> Confidence.of([(False, True), (False, False), (True, True)]).interval[1] > 0.9
        True
        """
        return cls(
            len(verdicts),
            sum(not truth for truth, _ in verdicts),
            sum(not truth and called for truth, called in verdicts),
            sum(truth and not called for truth, called in verdicts),
        )

    @property
    def interval(self) -> tuple[float, float]:
        """The shares of false OKs that 95 in 100 such counts are compatible with (Clopper and Pearson)."""
        from scipy.stats import beta

        rest = (1 - CERTAINTY) / 2
        low = beta.ppf(rest, self.false_ok, self.not_ok - self.false_ok + 1) if self.false_ok else 0.0
        high = (
            beta.ppf(1 - rest, self.false_ok + 1, self.not_ok - self.false_ok) if self.false_ok < self.not_ok else 1.0
        )
        return float(low), float(high)

    def sentence(self) -> str:
        """Say in words what to expect."""
        if not self.not_ok:
            return (
                f"None of the {self.examples} examples is NOT OK, so it is not known how many false OKs to expect; add "
                "examples that must be refused."
            )
        low, high = self.interval
        called, alarms = (
            f"{count} {'was' if count == 1 else 'were'} called" for count in (self.false_ok, self.false_alarms)
        )
        return (
            f"Of {self.not_ok} examples that are NOT OK, {called} OK when left out: expect "
            f"{self.false_ok / self.not_ok:.0%} false OKs ({low:.0%} to {high:.0%} with so few examples). Of "
            f"{self.examples - self.not_ok} that are OK, {alarms} NOT OK."
        )
