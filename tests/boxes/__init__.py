"""Containers without an engine: Linux namespaces of their own for processes, mounts, names and network, and a root made for them.

What a file says of a container is taken as it stands: command, environment, health check, mount paths, host names, ports. A box
sees the system's programs, this Python, and what its image would hold; nothing of the host's network and processes. What stands in
for an image that cannot be had here lies in `stand_ins.py`.
"""

from boxes.box import Box, Boxes, missing

__all__ = ["Box", "Boxes", "missing"]
