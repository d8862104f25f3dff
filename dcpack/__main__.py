"""``python -m dcpack``."""

from dcpack.cli import run

if __name__ == "__main__":
    run()
