"""`python -m emat` is the same as `emat`."""

from emat.cli import main

if __name__ == "__main__":
    main()
