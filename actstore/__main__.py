"""``python -m actstore`` is the command line."""

import sys

from actstore.cli import main

sys.exit(main())
