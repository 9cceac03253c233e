from __future__ import annotations

import sys
import threading
import time
import traceback

from smddp.failure.stack_frames import thread_traceback


def test_a_thread_in_a_jump_of_a_loop_has_the_line_before_it() -> None:
    """Python 3.10 and 3.11 switch threads there, and the frame has no line."""
    began, over = threading.Event(), threading.Event()
    least = 10 if sys.version_info < (3, 12) else 0
    samples, without_line, found = 0, 0, set[str]()

    def compute() -> int:
        odd = 0
        began.set()
        while not over.is_set():
            for number in range(1000):
                if number & 1:
                    odd += 1
        return odd

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        deadline = time.monotonic() + 60
        began.wait()
        while (without_line < least or samples < 200) and time.monotonic() < deadline:
            time.sleep(0.001)
            samples += 1
            without_line += sys._current_frames()[thread.ident or 0].f_lineno is None
            last = traceback.extract_tb(thread_traceback(thread))[-1]
            found.add(str(last.line) if last.name == "compute" else "")
    finally:
        over.set()
        thread.join()
    assert without_line >= least
    assert found <= {"", "for number in range(1000):", "if number & 1:", "odd += 1", "while not over.is_set():"}
    assert found & {"if number & 1:", "odd += 1"}
