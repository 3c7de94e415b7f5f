"""Settings as a YAML file, each with its help beside it."""

from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from emat.errors import EmatError
from emat.formats.whole_files import read_text, write_text
from emat.training.settings import Settings


def as_plain(settings: Settings) -> dict[str, Any]:
    """Settings as values that YAML and JSON know."""
    return {each.name: _plain(getattr(settings, each.name)) for each in fields(settings)}


def from_plain(values: dict[str, Any]) -> Settings:
    """The settings with these values, the defaults for the others.

    >>> from_plain({"data": ["pets"], "epochs": 3}).data
    (PosixPath('pets'),)
    """
    hints = get_type_hints(Settings)
    for name in values:
        if name not in hints:
            raise EmatError(f"there is no setting {name!r}; emat train --print-config shows all of them")
    return Settings(**{name: _typed(name, hints[name], value) for name, value in values.items()})


def config_text(settings: Settings) -> str:
    """YAML with a remark on every setting."""
    yaml = _yaml()
    hints = get_type_hints(Settings, include_extras=True)
    lines = []
    for name, value in as_plain(settings).items():
        (help_text,) = hints[name].__metadata__
        written = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6)
        lines.append(f"# {help_text}\n{name}: {written.removesuffix('...' + chr(10))}")
    return "\n".join(lines)


def write_config(path: Path, settings: Settings) -> None:
    """Write `settings` to `path`, whole or not at all."""
    write_text(path, config_text(settings))


def read_config(path: Path) -> dict[str, Any]:
    """The values in a YAML file, which need not name every setting."""
    yaml = _yaml()
    try:
        content = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        raise EmatError(f"{path} is no YAML ({str(error).splitlines()[0]}); see emat train --print-config") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise EmatError(f"{path} must hold settings such as `epochs: 80`; see emat train --print-config")
    return {str(name): value for name, value in content.items()}


def _yaml() -> Any:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise EmatError('configuration files need PyYAML; install it with: pip install "emat[train]"') from None
    return yaml


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def _typed(name: str, hint: Any, value: Any) -> Any:
    """`value` as the field's type; YAML reads 1e-3 as text and a lone path as no list."""
    kinds = getattr(hint, "__args__", (hint,))
    if getattr(hint, "__origin__", None) is tuple:
        values = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
        return tuple(_scalar(name, kinds[0], each) for each in values)
    return None if value is None and type(None) in kinds else _scalar(name, kinds[0], value)


def _scalar(name: str, kind: Any, value: Any) -> Any:
    try:
        if isinstance(value, bool) != (kind is bool):
            raise ValueError
        if kind is int and not isinstance(value, int):  # YAML reads 1e3 as text; a large seed must not pass a float
            if float(value) != int(float(value)):
                raise ValueError
            return int(float(value))
        return kind(value)
    except (TypeError, ValueError, OverflowError):
        raise EmatError(f"the setting {name} is {value!r}, which is no {kind.__name__}") from None
