"""The paper's tables and figures, made again: each number measured here beside the published one.

`contents` lists all of them with the tasks and models that are measured for them. `evaluations` reads what was measured
and measures the rest; `attention_cost` measures memory and time. `paper_tables` and `paper_figures` make tables and
figures, and `reproduction` writes everything to a folder, with a page that shows it.
"""
