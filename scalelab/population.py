"""Removed: seeds of one net train as processes side by side. Deleted in the next release."""

from scalelab.config import exits


def main() -> None:
    """Names the commands that took this program's place."""
    exits.fail(
        "scalelab.population is gone: start one scalelab.train per seed"
        " (--config=pretrain:...,seed=1), or state a study with seeds=N, whose runs"
        " `scalelab study run` trains side by side"
    )


if __name__ == "__main__":
    main()
