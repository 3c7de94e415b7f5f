"""The paper's tables and figures, made again: each number measured here beside the published one.

`parts` lists all of them. What they need is known from `paper_tasks` (tasks), `models` (rows and heads) and `published`
(the paper's numbers). `ledger` reads what was measured, `measuring` measures the rest, and `attention_cost` measures
memory and time against the `plain_network`. `cells`, `paper_tables` and `table_files` make the tables. `gallery` lists
the figures: `charts`, the `diagram`, `examples` of tasks and `qualitative` predictions, the last two drawn as `panels`.
`reproduction` writes everything to a folder, with a `page` that shows it.
"""
