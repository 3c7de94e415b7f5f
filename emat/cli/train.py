"""`emat train`: train a head."""

from pathlib import Path
from typing import Annotated, Any

import typer

from emat.cli.options import Overwrite, given_options, takes
from emat.outputs import claim_folder
from emat.progress import follow, is_first_process
from emat.training.options import TrainingOptions, config_text, from_plain, read_config
from emat.training.state import CONFIG, run_folder

NO_ARGS_IS_HELP = True


@takes(TrainingOptions)
def command(
    on_command_line: TrainingOptions,
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help="YAML file of options; the command line overrides it.")] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print all options as YAML and stop.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the run in --out with its options, except those given here.")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Train a head on any data set with masks; the backbone is not changed.

    The paper's experiment:  emat train --dataset pascal --data VOC2012 --lists splits --fold 0 --backbone dinov2-s

    Example on a laptop:  emat train --data photos --fold 0 --size 256 --max-tasks 20000 --ema 0.999 --out runs/mine
    """
    options = _options(given_options(on_command_line, context), config, resume)
    if print_config:
        typer.echo(config_text(options))
        return
    claim_folder(run_folder(options), overwrite=overwrite or resume)
    from emat.training.run import train

    folder = train(options, resume=resume, watch=lambda names: follow(names, len(names), "masks read"))
    if is_first_process():
        typer.echo(f"trained: {folder / 'best.safetensors'}")


def _options(given: dict[str, Any], config: Path | None, resume: bool) -> TrainingOptions:
    """Combine the options: the command line comes first, then the file, then the resumed run, then the defaults."""
    values = {} if config is None else read_config(config)
    values |= given
    options = from_plain(values)
    if not resume:
        return options
    folder = run_folder(options)
    begun = read_config(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    return from_plain({**begun, **values, "out": folder})
