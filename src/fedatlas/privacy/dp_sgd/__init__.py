"""DP-SGD: every step's gradient is formed row by row, clipped and noised, so that single records stay hidden."""
