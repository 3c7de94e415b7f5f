"""The paper's tables and figures, made again: each number measured here beside the published one."""
