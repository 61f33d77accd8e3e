"""A GPU that is not there: PyTorch's CUDA build on stand-ins for NVIDIA's libraries, see `fakegpu`."""
