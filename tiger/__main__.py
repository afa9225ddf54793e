"""Entry point of `python -m tiger`."""

from tiger.cli import main

if __name__ == "__main__":
    main()
