"""Flows on Detent whose steps say that they are short and have no effects, as Parsl takes it of all its functions."""

from typing import ClassVar

from bench.peers.detent.flows import DetentFlows
from bench.peers.protocol import speak


class DetentInline(DetentFlows):
    how: ClassVar[dict[str, object]] = {"inline": True}


if __name__ == "__main__":
    speak(DetentInline())
