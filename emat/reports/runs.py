"""Results files put together: the files of one method, with one or several folds each, become one line of a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emat.errors import EmatError
from emat.evaluation.results import OWN_THRESHOLDS, fold_counts, read_results
from emat.evaluation.summary import FoldCounts, Summary, summarise


@dataclass(frozen=True)
class Line:
    """All scores of one method, under the label that it has in tables and figures."""

    label: str
    trained_parameters: int
    summaries: tuple[Summary, ...]


def read_lines(files: Sequence[str]) -> list[Line]:
    """Read results files and return one line for each method.

    Files of the same method, backbone, size and thresholds belong together unless they have labels.

    Args:
        files: The paths, or LABEL=PATH to give a label.

    Raises:
        EmatError: If a file cannot be read, or if a configuration occurs twice in one line.
    """
    runs: dict[str, list[dict[str, Any]]] = {}
    short: dict[str, str] = {}
    for word in files:
        given, path = _label_and_path(word)
        content = read_results(path)
        label = given or _label(content, path)
        runs.setdefault(label, []).append(content)
        short[label] = given or label.split(" (")[0]
    unique = len(set(short.values())) == len(short)
    return [_line(short[label] if unique else label, contents) for label, contents in runs.items()]


def _label_and_path(word: str) -> tuple[str | None, Path]:
    label, equals, path = word.partition("=")
    if equals and not path:
        raise EmatError(f"{word!r} has a label but no file; write LABEL=FILE")
    return (label, Path(path)) if equals and not Path(word).exists() else (None, Path(word))


def _label(content: Mapping[str, Any], path: Path) -> str:
    names = {(each["name"], each["backbone"], each["image_size"]) for each in content["methods"].values()}
    if len(names) > 1:
        raise EmatError(f"{path} has results of several methods; give it a label: LABEL={path}")
    name, backbone, size = names.pop()
    extra = ", learning" if content.get("options", {}).get("learn") else ""
    extra += f", refined: {content['refine']}" if content.get("refine") else ""
    return f"{name} ({backbone}, {size} px, {_thresholds(content)}{extra})"


def _thresholds(content: Mapping[str, Any]) -> str:
    asked = content.get("thresholds")
    if asked == OWN_THRESHOLDS:
        return "own thresholds"
    if asked is None:  # a file from before presence and masks had their own thresholds
        return f"threshold {content['threshold']:g}"
    presence, mask = asked["presence"], asked["mask"]
    return f"threshold {presence:g}" if presence == mask else f"thresholds {presence:g} and {mask:g}"


def _line(label: str, contents: Sequence[Mapping[str, Any]]) -> Line:
    counts: list[FoldCounts] = []
    seen: set[tuple[object, int]] = set()
    for content in contents:
        for each in fold_counts(content["cells"], content["outcomes"]):
            if (each.conditions, each.fold) in seen:
                shared = each.conditions
                raise EmatError(
                    f"two files have {shared.way}-way {shared.shot}-shot {shared.setting} results of {label} on fold "
                    f"{each.fold}; give them labels: LABEL=FILE"
                )
            seen.add((each.conditions, each.fold))
            counts.append(each)
    counts.sort(key=lambda each: each.fold)
    parameters = max(each["trained_parameters"] for content in contents for each in content["methods"].values())
    return Line(label, parameters, tuple(summarise(counts)))


def overall(summaries: Sequence[Summary]) -> list[Summary]:
    """Return one summary for all folds that share their conditions: their mean, or the only fold."""
    several = {each.conditions for each in summaries if each.fold is None}
    return [each for each in summaries if each.fold is None or each.conditions not in several]
