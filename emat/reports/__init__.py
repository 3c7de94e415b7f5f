"""Tables and figures from the results of evaluations.

`comparison` puts the results of methods side by side, `tables` writes tables of any kind, and `figures` draws charts.
`paper` makes every table and figure of the paper for `emat reproduce`.
"""
