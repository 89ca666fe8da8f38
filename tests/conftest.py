"""What trainings under test find around them."""

import os
import signal
from pathlib import Path

# Signals as a user's shell leaves them: a test run started in the background, or with nohup, has some of them ignored, and
# what is ignored stays so in everything that it starts.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, usual)

# Hundreds of small processes: what they need is compiled once, and what they do not need is not imported.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["PYTHONPATH"] = str(Path(__file__).with_name("light"))
