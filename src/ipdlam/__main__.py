"""``python -m ipdlam`` is the command ``ipdlam``."""

from ipdlam.cli import main

if __name__ == "__main__":
    main()
