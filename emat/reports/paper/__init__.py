"""The paper's tables and figures, made again: each number measured here beside the published one.

`parts` lists all of them with the tasks that they need, and `models` the heads that are measured for their rows.
`measuring` reads what was measured and measures the rest; `attention_cost` measures memory and time. `cells` and
`paper_tables` make the tables; `charts` and `qualitative` (tasks and predictions, as rows of `panels`) the figures.
`reproduction` writes everything to a folder, with a `page` that shows it.
"""
