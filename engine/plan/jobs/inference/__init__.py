"""Inference services: what MindCluster's infer operator makes of InferServiceSets, and how it changes safely."""
