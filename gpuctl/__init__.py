"""gpuctl: launches jobs on remote GPU machines, watches them there, relaunches what ran out of memory."""

__version__ = "0.1.0"
