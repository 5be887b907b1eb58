"""What long work shows: bars at a terminal, lines with the time left in a log."""

import io
import sys
import time

import pytest

from scalelab.helpers.progress import show_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with show_bar("tokens", 60, show=True) as tick:
        for _ in range(6):
            now[0] += 5
            tick(10)
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "tokens: 33% | ETA 20s", "tokens: 67% | ETA 10s", "tokens: 100% | ETA 0s",
        "tokens: done in 30s",
    ]  # fmt: skip


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Terminal())
    with show_bar("tokens", 60, show=True) as tick, show_bar("inner", 0, show=True) as other:
        tick(60)
        other(5)
    shown = sys.stderr.getvalue()
    assert "tokens" in shown and "100%" in shown and "inner" in shown
    monkeypatch.setattr("sys.stderr", Terminal())
    with show_bar("tokens", 60, show=False) as tick:
        tick(60)
    assert not sys.stderr.getvalue()
