"""Tables and figures from results of evaluations."""
