"""Tools that follow a run round by round: MLflow, TensorBoard, Weights & Biases.

Imported only if ``[tracking]`` names them.
"""
