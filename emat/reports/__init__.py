"""Tables and figures from the results of evaluations."""
