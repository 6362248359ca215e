"""`python -m poem`: the `poem` command."""

import sys

from poem.cli.main import main

sys.exit(main())
