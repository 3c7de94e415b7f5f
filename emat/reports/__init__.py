"""Tables and figures from the results of evaluations.

`runs` puts the results files of a method together, `tables` and `figures` (in the `style` of all figures) show them,
and `terminal` prints them. `paper` makes every table and figure of the paper for `emat reproduce`.
"""
