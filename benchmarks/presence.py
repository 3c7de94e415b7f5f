"""How well presence scores tell tasks apart, whatever the threshold: from results that `emat eval` wrote.

    python benchmarks/presence.py runs/experiment/results/*-settings.json

Prints, for each fold's original setting, the area under the curve over all ways of all tasks.
"""

import argparse
from pathlib import Path

import numpy as np

from emat.evaluation.absence import area_under_curve
from emat.evaluation.metrics import TaskOutcome
from emat.evaluation.results import read_results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path)
    for path in parser.parse_args().results:
        content = read_results(path)
        for configuration, rows in zip(content["cells"], content["outcomes"], strict=True):
            if configuration["protocol"]["setting"] == "original":
                outcomes = [TaskOutcome.from_row(row) for row in rows]
                scores = np.array([score for each in outcomes for score in each.scores or ()])
                truth = np.array([there for each in outcomes for there in each.truth])
                print(
                    f"{path.name}: fold {configuration['fold']}, {area_under_curve(scores[truth], scores[~truth]):.3f}"
                )


if __name__ == "__main__":
    main()
