"""When a timer is due."""

from helpers.timers import replace_clock

from repsim_cli.base import timer


def test_a_timer_waits_longer_after_what_took_long(monkeypatch):
    now = [100.0]
    replace_clock(monkeypatch, timer, monotonic=lambda: now[0])
    asked, done = timer.Timer(3.0, share=0.02), []
    for _ in range(400):
        now[0] += 0.25
        if asked.is_due():
            done.append(now[0])
            with asked.restart():
                now[0] += 0.5
    assert done == [103.0, 128.5, 154.0, 179.5]  # 3 s after it began, then every 0.5 s / 2 %
