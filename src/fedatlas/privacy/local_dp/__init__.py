"""Local differential privacy: each client clips and noises what it sends."""
