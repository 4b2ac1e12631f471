"""Runs the command line, cli.py, for `python -m xdb`."""

import sys

from .cli import main

sys.exit(main())
