"""Results files put together: runs of one method on several folds become one line of a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emat.errors import EmatError
from emat.evaluation.results import OWN_THRESHOLDS, fold_counts, read_results
from emat.evaluation.summary import FoldCounts, Summary, summarise


@dataclass(frozen=True)
class Line:
    """All that is known of one method, under the name that tables give it."""

    label: str
    trained_parameters: int
    summaries: tuple[Summary, ...]


def read_lines(files: Sequence[str]) -> list[Line]:
    """A line for each method in `files`, each a path or LABEL=PATH.

    Files of one method, backbone and image size belong together unless labels say otherwise; a fold of a configuration
    may occur once in a line.
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
        raise EmatError(f"{word!r} names no file of results; write LABEL=FILE")
    return (label, Path(path)) if equals and not Path(word).exists() else (None, Path(word))


def _label(content: Mapping[str, Any], path: Path) -> str:
    names = {(each["name"], each["backbone"], each["image_size"]) for each in content["methods"].values()}
    if len(names) > 1:
        raise EmatError(f"{path} holds results of several methods; give it a name: LABEL={path}")
    name, backbone, size = names.pop()
    return f"{name} ({backbone}, {size} px, {_thresholds(content)})"


def _thresholds(content: Mapping[str, Any]) -> str:
    asked = content.get("thresholds")
    if asked == OWN_THRESHOLDS:
        return "own thresholds"
    if asked is None:  # a file from when one number was for both
        return f"threshold {content['threshold']:g}"
    presence, mask = asked["presence"], asked["mask"]
    return f"threshold {presence:g}" if presence == mask else f"thresholds {presence:g} and {mask:g}"


def _line(label: str, contents: Sequence[Mapping[str, Any]]) -> Line:
    counts: list[FoldCounts] = []
    seen: set[tuple[object, int]] = set()
    for content in contents:
        for each in fold_counts(content["cells"], content["outcomes"]):
            if (each.configuration, each.fold) in seen:
                asked = each.configuration
                raise EmatError(
                    f"two files have {asked.way}-way {asked.shot}-shot {asked.setting} results of {label} on fold "
                    f"{each.fold}; name them apart: LABEL=FILE"
                )
            seen.add((each.configuration, each.fold))
            counts.append(each)
    counts.sort(key=lambda each: each.fold)
    parameters = max(each["trained_parameters"] for content in contents for each in content["methods"].values())
    return Line(label, parameters, tuple(summarise(counts)))


def overall(summaries: Sequence[Summary]) -> list[Summary]:
    """One summary of every configuration: the mean over its folds, or its only fold."""
    several = {each.configuration for each in summaries if each.fold is None}
    return [each for each in summaries if each.fold is None or each.configuration not in several]
