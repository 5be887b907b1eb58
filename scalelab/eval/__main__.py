"""`python -m scalelab.eval NAME` is `scalelab eval NAME`; without a name it lists the programs."""

import sys

from scalelab import __main__ as programs

programs.main(["eval", *sys.argv[1:]])
