"""Flows on Keptwork whose steps say that they are short and have no effects, as Parsl takes it of all its functions."""

from typing import ClassVar

from bench.peers.keptwork.flows import KeptworkFlows
from bench.peers.protocol import speak


class KeptworkInline(KeptworkFlows):
    how: ClassVar[dict[str, object]] = {"inline": True}


if __name__ == "__main__":
    speak(KeptworkInline())
