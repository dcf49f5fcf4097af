"""``python -m wnfused`` is the command ``wnfused``."""

from wnfused.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
