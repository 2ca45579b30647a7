"""python -m sortal"""

import sys

from sortal.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
