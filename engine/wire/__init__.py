"""Every format shared with agents, MindCluster and containers. Pure: text in, nouns out, and back."""
