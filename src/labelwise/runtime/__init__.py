"""What a computation runs on: threads, devices, memory, time, processes."""
