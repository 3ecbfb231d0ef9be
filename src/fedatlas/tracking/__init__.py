"""Tools that hear a run round by round: MLflow, TensorBoard, Weights & Biases. None is imported unless ``[tracking]`` names it."""
