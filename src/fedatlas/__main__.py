"""``python -m fedatlas``: the same as ``fedatlas``."""

from fedatlas.cli import main

if __name__ == "__main__":
    main()
