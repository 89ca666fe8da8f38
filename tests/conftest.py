"""Signals as a user's shell leaves them: a test run started in the background, or with nohup, has some of them ignored, and
what is ignored stays so in everything that it starts.
"""

import signal

for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, usual)
