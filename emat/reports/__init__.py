"""Tables and figures from the results of evaluations.

`tables` puts the results files of a method together and shows them side by side, `figures` draws them, and `terminal`
prints them. `paper` makes every table and figure of the paper for `emat reproduce`.
"""
