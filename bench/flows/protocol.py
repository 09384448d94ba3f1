"""What every program of a system that runs flows understands, so that one runner measures them all.

    python -m bench.peers.NAME.flows setup | work | wide N | chain N | kept

A step is a Python function that returns its number, async or not, whichever the system is better at. Wide: all of them
side by side. Chain: one after the other. Each program first runs a flow of a few steps, in the process that is then
measured, so that starting up is in nobody's figure. BENCH_TARGET names the database or server. Only the standard
library is used: peers have environments of their own.
"""

from abc import ABC, abstractmethod

from bench.peers.protocol import Answer, Speaker

WARM = 10
"""How many steps go before, of the same shape."""


class FlowProgram(Speaker, ABC):
    """One system under measurement."""

    @abstractmethod
    def setup(self) -> Answer:
        """Prepares an empty database."""

    @abstractmethod
    def work(self) -> Answer:
        """Works as one process until SIGTERM, where the system has such processes."""

    @abstractmethod
    def wide(self, steps: int) -> Answer:
        """Warmed up, runs a flow of so many steps that wait for nothing; returns the seconds from just before its start
        until the caller knows that it has ended."""

    @abstractmethod
    def chain(self, steps: int) -> Answer:
        """The same with steps that each wait for the one before."""

    @abstractmethod
    def kept(self) -> Answer:
        """How many results of steps are kept."""


def noop(number: int) -> int:
    """What a step does."""
    return number


async def awaited(number: int) -> int:
    """The same, where a system is better at what it can await."""
    return number
