"""Devices, FLOPs, memory, and the allocator of freed memory."""
