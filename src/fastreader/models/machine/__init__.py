"""The machine: devices, memory, and which products run at which rate."""
