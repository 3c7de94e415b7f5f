"""Methods and backbones that other installed packages add through entry points.

A package adds a method with these lines in its `pyproject.toml`; backbones use the group `emat.backbones`:

    [project.entry-points."emat.methods"]
    my-method = "my_package.method:MyMethod"

A package is imported only when one of its names is asked for, so a broken package does no harm until it is used.
"""

from importlib.metadata import EntryPoint, entry_points

from emat.errors import EmatError

METHOD_GROUP = "emat.methods"
BACKBONE_GROUP = "emat.backbones"


def plugin_names(group: str) -> list[str]:
    """Return the names that installed packages add to `group`, without importing the packages."""
    return sorted({entry.name for entry in entry_points(group=group)})


def load_plugin(group: str, name: str) -> object:
    """Import what an installed package adds to `group` under `name`.

    Raises:
        EmatError: If no package has the name, several have it, or the package cannot be imported.
    """
    offered = list(entry_points(group=group, name=name))
    if not offered:
        raise EmatError(
            "unknown-plugin",
            f"no installed package adds {name!r} to {group}; check the spelling or install the package",
        )
    if len(offered) > 1:
        packages = ", ".join(sorted(map(package_of, offered)))
        raise EmatError(
            "broken-plugin", f"several packages add {name!r} to {group}: {packages}; uninstall all of them but one"
        )
    try:
        return offered[0].load()
    except Exception as error:  # whatever the import of a foreign package may raise
        reason = str(error).split("\n")[0]
        raise EmatError(
            "broken-plugin",
            f"the package {package_of(offered[0])} adds {name!r} to {group}, but {offered[0].value} cannot be imported "
            f"({type(error).__name__}: {reason}); update or uninstall the package",
        ) from error


def plugin_problem(group: str, name: str, expected: str, got: object) -> EmatError:
    """Return the error for a package that adds something that cannot be used; `expected` says what is needed."""
    (entry,) = entry_points(group=group, name=name)
    kind = got.__name__ if isinstance(got, type) else f"a {type(got).__name__}"
    return EmatError(
        "broken-plugin",
        f"the package {package_of(entry)} adds {name!r} to {group}, but {entry.value} is {kind}, not {expected}; "
        "update or uninstall the package",
    )


def package_of(entry: EntryPoint) -> str:
    """Return the name of the package that an entry point comes from."""
    return entry.dist.name if entry.dist is not None else entry.module.partition(".")[0]
