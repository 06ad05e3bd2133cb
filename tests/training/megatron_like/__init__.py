"""A small framework in the manner of Megatron, with all adaptation points of MindIO TFT, on gloo."""
