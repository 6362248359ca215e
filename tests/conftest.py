"""Settings that all tests share."""

import signal

from hypothesis import settings

settings.register_profile("poem", deadline=None, print_blob=True)  # no assertion on time; a failure prints how to repeat it
settings.load_profile("poem")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell that starts tests in the background has it so, and programs inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
