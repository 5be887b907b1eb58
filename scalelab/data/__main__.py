"""`python -m scalelab.data NAME` is `scalelab data NAME`; without a name it lists the programs."""

import sys

from scalelab import __main__ as programs

programs.main(["data", *sys.argv[1:]])
