"""A process that has imported this writes where its threads are to stderr when it gets SIGUSR1."""

import faulthandler
import signal

faulthandler.register(signal.SIGUSR1, file=2)
