"""From masks to numbers: objects and photos in tables, with units, shares, verdicts, and files for other programs.

`measure` is the one way from a scene to its rows, for the command line, the studio and Python:

1. `scene` joins a photo and its objects, whether predicted or drawn elsewhere, and removes what does not count.
2. `units` finds the size of a pixel and says where it comes from.
3. `properties` measures objects, with their `convex_hull`, and thin ones along their `centre_line`.
4. `shares` relates one class to another; `verdicts` says OK or NOT OK.
5. `tables`, `exports` and `report_html` write what was found.

`run` does that for many photos, whose masks come from a `mask_source`; `slides` measures what is too large for the
memory.
"""

from emat.measure.measuring import Measurements, MeasureOptions, measure
from emat.measure.scene import Filters, Scene

__all__ = ["Filters", "MeasureOptions", "Measurements", "Scene", "measure"]
