"""placeholder"""
MOST_SHAPES = 64
