"""python -m sortal"""

import sys

from sortal.cli import main

if __name__ == "__main__":
    sys.exit(main())
