"""The controller's handle on one node: sees that the bundle is there, calls its verbs, and parses what comes back."""

from gpuctl.agent.agent import Agent, Gpus, Started
from gpuctl.agent.copying import Copied, Place, copy
from gpuctl.agent.framing import Chunk

__all__ = ["Agent", "Chunk", "Copied", "Gpus", "Place", "Started", "copy"]
