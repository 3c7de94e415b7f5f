"""What holds here of what the paper finds: how rows that were measured alike differ, beside the published rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from emat.evaluation.metrics import compute, count_outcome, merge
from emat.evaluation.results import bootstrap_difference
from emat.reports.paper.attention_cost import FILLED, LEFT_OUT, TYPICAL_COVER, AttentionCase, Costs
from emat.reports.paper.cells import name_folds, published_number
from emat.reports.paper.measuring import Ledger
from emat.reports.paper.models import ABLATION_ROWS
from emat.reports.paper.parts import (
    CURVES,
    FILTERED,
    SIZES,
    SMALL,
    SMALL_SPLITS,
    THREE_SETTINGS,
    UNFILTERED,
    Need,
    other_model,
)

SCORES = {"accuracy": "accuracy", "miou": "mIoU"}  # as sentences name them
COST_CASES = tuple(AttentionCase("emat-me", masking) for masking in (FILLED, LEFT_OUT))


def findings(ledger: Ledger, costs: Costs) -> list[str]:
    """Return a sentence on each finding of the paper that can be judged with what was measured."""
    scores = [
        *_settings(ledger),
        *_gain(ledger),
        *_steps(ledger),
        *_small_objects(ledger),
        *_theta(ledger),
        *_ways(ledger),
    ]
    return [*_counts(ledger), *scores, *_memory(costs)]


def _counts(ledger: Ledger) -> list[str]:
    """Whether the augmented settings change as many tasks as in the paper."""
    table = "table-3" if ledger.tasks.name == "pascal" else "table-4"
    pairs = []
    for need in THREE_SETTINGS[1:]:
        counted = ledger.tasks.augmented(need)
        published = published_number(table, need.setting.value, "augmented tasks")
        if counted is not None and published is not None:
            pairs.append((sum(counted), int(published)))
    if not pairs or not ledger.tasks.are_published:
        return []
    here, there = (" and ".join(str(pair[side]) for pair in pairs) for side in (0, 1))
    same = "as in the paper" if here == there else f"and not {there} as in the paper"
    return [f"Tasks: the partially and fully augmented settings change {here} of the 2-way 1-shot tasks, {same}."]


def _settings(ledger: Ledger) -> list[str]:
    """How EMAT's scores change from the original to the augmented settings."""
    first = ledger.common_tasks(["EMAT"], THREE_SETTINGS)
    means = [ledger.over_folds("EMAT", need, first) for need in THREE_SETTINGS]
    folds = {() if mean is None else mean.folds for mean in means}
    if len(folds) > 1 or () in folds:
        return []
    parts = []
    for score, words in SCORES.items():
        here = [100 * (mean.scores[score] or 0) for mean in means if mean is not None]
        there = [_published(ledger, f"{need.setting.value} EMAT", score, *folds) for need in THREE_SETTINGS]
        if None not in there:
            shown, published = (", ".join(f"{value or 0:.1f}" for value in values) for values in (here, there))
            parts.append(f"{words} {shown} here and {published} in the paper")
    which = _only(ledger, *folds)
    return [f"Settings{which}: EMAT in the original, partially and fully augmented one has {'; '.join(parts)}."]


def _published(ledger: Ledger, row: str, score: str, folds: Sequence[int]) -> float | None:
    """The mean over some folds of a row of the paper's per-fold table."""
    table = "table-3" if ledger.tasks.name == "pascal" else "table-4"
    known = [published_number(table, row, f"{fold} {score}") for fold in folds]
    return None if None in known else sum(value or 0 for value in known) / len(known)


def _gain(ledger: Ledger) -> list[str]:
    """EMAT's gain over CST*, on all data and on small objects, beside the published gain."""
    found = []
    for words, need, published in (
        ("2-way 1-shot, original setting", THREE_SETTINGS[0], _published_gain),
        ("objects below 15 % of the photo, 1-way 1-shot", SMALL, _published_small_gain),
    ):
        gain = gain_over(ledger, "EMAT", "CST*", need)
        if gain is None:
            continue
        said = []
        for score, name in SCORES.items():
            there = published(ledger, score, gain.folds)
            in_paper = "" if there is None else f", {_signed(there)} in the paper"
            said.append(f"{name} {gain.words(score)} here{in_paper}")
        found.append(f"EMAT against CST*, {words}{_only(ledger, gain.folds)}: {'; '.join(said)}.")
    return found


def _published_gain(ledger: Ledger, score: str, folds: Sequence[int]) -> float | None:
    ours, theirs = (_published(ledger, f"original {label}", score, folds) for label in ("EMAT", "CST*"))
    return None if ours is None or theirs is None else ours - theirs


def _published_small_gain(ledger: Ledger, score: str, folds: Sequence[int]) -> float | None:
    ours, theirs = (published_number("table-2", row, f"small {score}") for row in ("EMAT ME LD PE", "CST* 145"))
    known = ledger.tasks.name == "pascal" and len(folds) == len(ledger.tasks.folds)
    return None if ours is None or theirs is None or not known else ours - theirs


def _small_objects(ledger: Ledger) -> list[str]:
    """EMAT's gain in the three splits of small objects."""
    other = other_model(list(ledger.methods))
    gains = [] if other is None else [gain_over(ledger, "EMAT", other, need) for need in SIZES]
    known = [each for each in gains if each is not None]
    if not known or len(known) < len(gains):
        return []
    parts = [f"{words} {', '.join(each.words(score) for each in known)}" for score, words in SCORES.items()]
    return [
        f"Object size: EMAT's gain over {other} for objects of {', '.join(SMALL_SPLITS)} % of the photo"
        f"{_only(ledger, known[0].folds)}: {'; '.join(parts)}. "
        "In the paper (Fig. 6) it is largest for the smallest objects."
    ]


def _steps(ledger: Ledger) -> list[str]:
    """What each step of Table 2 gains, as far as its heads were measured."""
    measured = [label for label in ABLATION_ROWS if ledger.measured_folds(label)]
    if not set(measured) - {"CST*", "EMAT"}:
        return []  # there is no step between them
    found = []
    for before, after in pairwise(measured):
        for which, need in (("all", THREE_SETTINGS[0]), ("small", SMALL)):
            gain = gain_over(ledger, after, before, need)
            if gain is None:
                continue
            rows = [ABLATION_ROWS[label] for label in (after, before)]
            said = []
            for score, name in SCORES.items():
                there = [published_number("table-2", row, f"{which} {score}") for row in rows]
                known = None if there[0] is None or there[1] is None else _signed(there[0] - there[1])
                said.append(f"{name} {gain.words(score)} here, {known} in the paper on all folds")
            where = "2-way 1-shot" if which == "all" else "objects below 15 % of the photo"
            found.append(f"Ablation, from {before} to {after}, {where}{_only(ledger, gain.folds)}: {'; '.join(said)}.")
    return found


def _theta(ledger: Ledger) -> list[str]:
    """What the augmented settings gain if objects below theta are not added."""
    pairs = zip(FILTERED, UNFILTERED, strict=True)
    gains = [gain_between(ledger, ("EMAT", with_theta), ("EMAT", without)) for with_theta, without in pairs]
    known = [each for each in gains if each is not None]
    if len(known) < len(gains):
        return []
    words = ", ".join(f"{need.setting.value.replace('-', ' ')} {need.way}-way" for need in FILTERED)
    parts = [f"{name} {', '.join(each.words(score) for each in known)}" for score, name in SCORES.items()]
    return [
        f"Theta: leaving small objects out of the augmented settings ({words}) changes EMAT's {'; '.join(parts)}"
        f"{_only(ledger, known[0].folds)}. In the paper (Fig. 8, COCO-20i) it raises both scores in every case."
    ]


def _ways(ledger: Ledger) -> list[str]:
    """How EMAT does with one to five ways, and its gain over the other model."""
    other = other_model([label for label in ledger.methods if ledger.mean(label, CURVES[0]) is not None])
    first = ledger.common_tasks(["EMAT", *filter(None, [other])], CURVES)
    means = [ledger.mean("EMAT", need, first) for need in CURVES]
    if None in means:
        return []
    parts = []
    gains = [] if other is None else [gain_over(ledger, "EMAT", other, need) for need in CURVES]
    for score, name in SCORES.items():
        here = ", ".join(f"{100 * (mean.scores[score] or 0):.1f}" for mean in means if mean is not None)
        over = ", ".join(each.words(score) for each in gains if each is not None)
        parts.append(f"{name} {here}" + (f", which is {over} over {other}" if over else ""))
    return [
        f"Ways: with 1, 2, 3, 4 and 5 of them (5-shot, fully augmented) EMAT has {'; '.join(parts)}. In the paper "
        "(Fig. 9) EMAT is ahead of every other method at each of them, and its mIoU stays about the same."
    ]


def _memory(costs: Costs) -> list[str]:
    """What leaving masked tokens out saves at equal t_s."""
    filled, left_out = (costs.get((case, TYPICAL_COVER)) for case in COST_CASES)
    there = [published_number("table-2", row, "memory") for row in ("EMAT ME", "CST* 401")]
    if filled is None or left_out is None or there[0] is None or there[1] is None:
        return []
    return [
        f"Memory: with t_s = 401 and 101, leaving masked tokens out takes {left_out.bytes / filled.bytes:.0%} of the "
        f"memory of filling them (mask over {TYPICAL_COVER:.0%} of the photo). In the paper it is "
        f"{there[0] / there[1]:.0%} of all that the GPU had in use."
    ]


@dataclass(frozen=True)
class Gain:
    """How far a model's scores are above another's on the same tasks, in points, as the mean over some folds."""

    folds: tuple[int, ...]
    points: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]

    def words(self, score: str) -> str:
        """Return the gain and its interval."""
        low, high = self.intervals[score]
        return f"{_signed(self.points[score])} ({_signed(low)} to {_signed(high)})"


def gain_over(ledger: Ledger, label: str, other: str, need: Need) -> Gain | None:
    """Return a model's gain over another with paired 95 % intervals, on the folds and tasks that both have.

    Returns:
        The gain; None if the models have no fold in common.
    """
    return gain_between(ledger, (label, need), (other, need))


def gain_between(ledger: Ledger, ours: tuple[str, Need], theirs: tuple[str, Need]) -> Gain | None:
    """Return the gain of a model on some tasks over a model on others that have the same queries; see `gain_over`."""
    found = [{each.configuration.fold: len(each.outcomes) for each in ledger.folds(*each)} for each in (ours, theirs)]
    first = tuple((fold, min(count, found[1][fold])) for fold, count in found[0].items() if fold in found[1])
    measured = [{each.configuration.fold: each for each in ledger.folds(*of, first)} for of in (ours, theirs)]
    folds = [fold for fold in measured[0] if fold in measured[1]]
    if not folds:
        return None
    counts = [
        [
            [count_outcome(outcome, by_fold[fold].configuration.class_ids) for outcome in by_fold[fold].outcomes]
            for fold in folds
        ]
        for by_fold in measured
    ]
    scores = [[compute(merge(tasks, tasks[0].class_ids)) for tasks in of_model] for of_model in counts]
    intervals = bootstrap_difference(counts[0], counts[1])
    points, ends = {}, {}
    for score in SCORES:
        pairs = zip(scores[0], scores[1], strict=True)
        points[score] = 100 * sum(getattr(a, score) - getattr(b, score) for a, b in pairs) / len(folds)
        interval = getattr(intervals, score)
        ends[score] = (100 * interval.low, 100 * interval.high)
    return Gain(tuple(folds), points, ends)


def _only(ledger: Ledger, folds: Sequence[int]) -> str:
    """Which folds a sentence is about, if not about all."""
    if len(folds) == len(ledger.tasks.folds):
        return ""
    return f", {name_folds(folds)} only"


def _signed(value: float) -> str:
    return f"{round(value, 1) + 0:+.1f}".replace("-", "−")  # adding 0 makes -0.0 positive
