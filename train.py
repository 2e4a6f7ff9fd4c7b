"""``python train.py …`` is ``bcs train …``."""

import sys

from bcs_lab.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
