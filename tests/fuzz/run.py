"""Run the fuzzer: `python tests/fuzz/run.py --long` for minutes, `--kind coco --seed 7 --cases 1` for a single case.

Each kind of input runs in a process of its own, with a limit of memory, and each case with a limit of time. A finding
is printed with the command that repeats it.
"""

import argparse
import contextlib
import io
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

SECONDS = 10  # of processor time for one case
PATIENCE = 240  # seconds for one case, including waiting on a machine that is very busy
MEMORY = 2 << 30  # bytes of data
SHORT, LONG = 60, 4000  # cases of each kind
FEWER = {
    "weights": 4,
    "arguments": 4,
    "fitted": 20,
    "requests": 2,
    "hub": 10,
    "studio": 4,
    "videos": 4,
    "measured": 2,
    "results": 2,
    "sessions": 2,
}  # these take longer


def work(kind: str, seed: int, cases: int) -> int:
    """Run the cases of one kind in this process; returns 1 at the first finding."""
    from tests.fuzz.kinds import KINDS

    warnings.simplefilter("ignore")
    if kind in FEWER:  # to load torch is not part of a case
        import emat.cli.convert
        import emat.cli.predict  # noqa: F401
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["EMAT_HOME"] = str(Path(scratch) / "home")
        os.chdir(scratch)  # an empty name is the folder that a command runs in
        for number in range(seed, seed + cases):
            print(number, flush=True)  # the last one that is printed is the one that ended the process
            signal.alarm(PATIENCE)  # both signals end the process, even while it runs C code
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
                    KINDS[kind](random.Random(number), Path(scratch))
            except BaseException:
                traceback.print_exc()
                return 1
            finally:
                signal.alarm(0)
                signal.setitimer(signal.ITIMER_PROF, 0)
    return 0


def fuzz(kind: str, seed: int, cases: int) -> str | None:
    """Run the cases of one kind in another process; returns what was found, or None."""
    command = [sys.executable, __file__, "--work", "--kind", kind, "--seed", str(seed), "--cases", str(cases)]
    ended = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if ended.returncode == 0:
        return None
    last = ended.stdout.split()[-1] if ended.stdout.split() else str(seed)
    how = f"ended by signal {-ended.returncode}" if ended.returncode < 0 else ended.stderr[-3000:]
    return f"{how}\nrepeat it with: python tests/fuzz/run.py --work --kind {kind} --seed {last} --cases 1"


def cases_of(kind: str, long: bool) -> int:
    """How many cases of a kind to run."""
    return (LONG if long else SHORT) // FEWER.get(kind, 1)


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", help="one kind of input; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int)
    parser.add_argument("--long", action="store_true", help="thousands of cases, for minutes")
    parser.add_argument("--work", action="store_true", help="run in this process")
    options = parser.parse_args()
    if options.work:
        return work(options.kind, options.seed, options.cases)
    from tests.fuzz.kinds import KINDS

    found = 0
    for kind in [options.kind] if options.kind else KINDS:
        cases = options.cases or cases_of(kind, options.long)
        finding = fuzz(kind, options.seed, cases)
        print(f"{kind}: {cases} cases, {'nothing found' if finding is None else finding}", flush=True)
        found += finding is not None
    return found


if __name__ == "__main__":
    sys.exit(main())
