"""MindCluster's own packages and processes for training, on Belay's engine: TaskD, MindIO TFT, the Elastic Agent."""
